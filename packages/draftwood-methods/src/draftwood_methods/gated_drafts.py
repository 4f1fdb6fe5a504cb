"""Draft LMs that end their chains themselves, and the sessions that do so."""

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import Drafter, DraftRequest
from draftwood.drafters.head_drafts import HeadDrafts
from draftwood.drafters.head_rows import vocabulary_of, working_dtype
from draftwood.drafters.resources import Resources
from draftwood.models.requirements import require_ability
from draftwood.shapes import Shape
from draftwood.tree import Draw
from draftwood_methods.shapes.gated import Gated


@dataclass(frozen=True, eq=False)
class GatedDrafter(HeadDrafter):
    """Base of drafters that read tokens alone, and draw a chain that they end themselves."""

    shape_type: ClassVar[type] = Gated
    shape: Shape = field(default_factory=Gated)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        if resources.head is None:
            raise ValueError(f"{cls.name} drafts with a trained head; give one")
        return cls(resources.head, resources.target, resources.shape or Gated())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Gated()).draw})

    def prepare(self, hidden: int) -> torch.dtype:
        """Make the vocabulary, and return the type that the weights are to have.

        Args:
            hidden: entries of the embeddings that the drafter reads.

        Raises:
            ValueError: for another shape, and for a target of another width, or without embedding
                and output head.
        """
        target = self.target
        if not isinstance(self.shape, Gated):
            raise ValueError(
                f"{self.name} draws a chain that it ends itself, no {self.shape.label}; leave the"
                " tree out, or choose another drafter"
            )
        require_ability(target, "embeddings_and_head", self.name)
        if hidden != target.hidden_size:
            raise ValueError(
                f"the drafter reads embeddings of {hidden} entries, the target has"
                f" {target.hidden_size}; take a drafter of this model"
            )
        dtype = working_dtype(target)
        vocabulary = vocabulary_of(self.trained.draft_tokens, target, dtype)
        object.__setattr__(self, "vocabulary", vocabulary)
        return dtype


class GatedDrafts(HeadDrafts):
    """Drafts of one text, whose chains end where ``goes_on`` says so.

    Args:
        text: the LM at work on this text, a ``HeadText``.
    """

    def __init__(self, drafter: GatedDrafter, request: DraftRequest, text: Any) -> None:
        own = copy(drafter)
        assert isinstance(drafter.shape, Gated)
        object.__setattr__(own, "shape", replace(drafter.shape, gate=self.goes_on))
        super().__init__(own, request, text)

    @abstractmethod
    def goes_on(self, node: int) -> bool:
        """True if a token is drawn below a node, which has just been run."""
