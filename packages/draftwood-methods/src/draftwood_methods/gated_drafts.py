"""Draft LMs that end their chains themselves, and the sessions that do so."""

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import Drafter, DraftRequest
from draftwood.drafters.head_drafts import HeadDrafts
from draftwood.drafters.resources import Resources
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

    def prepare(self) -> None:
        """Bring the head to its target; raises ValueError for another shape."""
        if not isinstance(self.shape, Gated):
            raise ValueError(
                f"{self.name} draws a chain that it ends itself, no {self.shape.label}; leave the"
                " tree out, or choose another drafter"
            )
        _ = self.placed


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
