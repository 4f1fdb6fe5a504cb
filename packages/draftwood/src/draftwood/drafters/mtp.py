"""Draft with the layer for multi-token prediction that comes with a target."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from draftwood.drafters.draft_vocabulary import DraftVocabulary, small_tree
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Need
from draftwood.drafters.head_drafts import HeadDrafts, native_text
from draftwood.drafters.resources import Resources
from draftwood.models.model import Model
from draftwood.models.mtp import MtpHead
from draftwood.models.requirements import require_mtp_head
from draftwood.shapes.shape import Shape
from draftwood.tree import Draw


@dataclass(frozen=True, eq=False)
class Mtp(Drafter):
    """A tree that the target's own layer for multi-token prediction drafts, level by level.

    DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437); Qwen3.5, GLM-4.5, MiMo and others come with
    such layers. As an EAGLE head does, it reads the target's states of every token that became
    text, and behind these what it said itself.

    Differs from the paper: one layer drafts all levels, also where the model comes with several,
    and any shape grows the tree.

    Args:
        head: the layer.
        target: the model whose text is written, which it belongs to.
        shape: the tree to grow.

    Example:
        The text is 1 2 3 4 5, and s1 to s4 are the target's states at its tokens; 5 is not run yet.
        The layer takes in s1 2, s2 3, s3 4 and s4 5, and says 6 after the last. For 6 it reads its
        own output in the place of s5, and says 7. The target runs 5, 6 and 7, and says 6, 9 and 0:
        it keeps 6 and goes on with 9.
    """

    name: ClassVar[str] = "mtp"
    needs: ClassVar[frozenset[Need]] = frozenset({"layers"})
    uses: ClassVar[frozenset[Need]] = frozenset({"shape", "mtp"})
    head: MtpHead
    target: Model
    shape: Shape = field(default_factory=small_tree)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        target = resources.target
        head = resources.mtp or require_mtp_head(target, f"method {cls.name!r}")
        return cls(head, target, resources.shape or small_tree())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or small_tree()).draw})

    @property
    def reads(self) -> tuple[int, ...]:
        """The target's layers whose inputs the layer reads."""
        return self.head.reads

    @cached_property
    def vocabulary(self) -> DraftVocabulary:
        """The tokens that are drafted: all of the target's."""
        size = self.target.vocab_size
        return DraftVocabulary(np.arange(size), size)

    def start(self, request: DraftRequest) -> DraftSession:
        native = self.head.native
        text = self.head.text() if native is None else native_text(native, self, request.sampler)
        return HeadDrafts(self, request, text)
