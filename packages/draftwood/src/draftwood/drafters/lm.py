"""Draft with a small language model between the target's embedding and output head."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.drafters.ahead import BranchingSession, always
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.drafters.head_drafts import BranchingText, HeadDrafts, native_text
from draftwood.heads.lm import LmConfig
from draftwood.heads.packed import native_head
from draftwood.native.head import NativeHead
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Lm(HeadDrafter):
    """A tree that a draft LM writes, with one call of it per level.

    The LM (``LmHead``; trained as in DistillSpec, Zhou et al. 2024, arXiv:2310.08461) reads tokens
    alone, so it needs no hidden states and drafts as well behind a draft as behind the text. The
    library runs it where it runs the target, PyTorch elsewhere.

    Args:
        trained: LM, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.

    Raises:
        ValueError: where the drafter is of another kind or does not fit the target.

    Example:
        The text is 1 2 3 4 5. The LM reads these tokens and says 6; it reads 6 and says 7. The
        target runs 5, 6 and 7 at once, and says 6, 7 and 8: it keeps 6 7 and goes on with 8.
    """

    name: ClassVar[str] = "lm"
    drafts_ahead: ClassVar[bool] = True
    native: NativeHead | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.fitting(LmConfig)
        object.__setattr__(self, "native", native_head(self.trained, self.target))
        self.require_runtime(self.native)

    def start(self, request: DraftRequest) -> DraftSession:
        if self.native is not None:
            return _LmSession(self, request, native_text(self.native, self, request.sampler))
        embeddings, placed = self.target.embeddings_and_head, self.placed
        text = self.runner.lm_text(placed.network, embeddings, placed.logits)
        return _LmSession(self, request, text)


class _LmSession(HeadDrafts, BranchingSession):
    def __init__(self, drafter: Lm, request: DraftRequest, text: BranchingText) -> None:
        super().__init__(drafter, request, text)
        self._branching = text
        self.go_on: Callable[[], None] = always
        self.newest: Float[np.ndarray, "1 draft_vocab"] | None = None  # logits after the last root

    def branch(self, rng: Rng, go_on: Callable[[], None]) -> "_LmSession":
        other, text = copy(self), self._branching
        other.rng, other.go_on = rng, go_on
        other.text = other._branching = text.branch()
        return other

    def logits_after(self, tree: DraftTree) -> Float[np.ndarray, "nodes vocab"] | None:
        if self.newest is None:
            return None
        rows = [self.newest]
        if len(tree) > 1:
            self.go_on()
            rows.append(as_array(self.text.level(tree, 1)))
        logits = self.drafter.vocabulary.widened(np.concatenate(rows))
        self.text.drop()
        return logits

    def propose(self, root: int, context: Context) -> DraftTree:
        self.newest = None
        return super().propose(root, context)

    def level(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        self.go_on()
        rows = super().level(tree, first)
        if first == 0:
            self.newest = rows.copy()
        return rows
