"""Draft with a head that continues the target's own hidden states."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.drafters.head_drafts import HeadDrafts, native_text
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.packed import native_head
from draftwood.heads.trained import TrainedHead
from draftwood.native.head import NativeHead


@dataclass(frozen=True, eq=False)
class Eagle(HeadDrafter):
    """A tree that an EAGLE head drafts, with one call of the head per level.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840). The head reads the target's hidden states of every
    token that became text; behind these it reads what it drafted itself. Rows that were drafted
    leave its cache with the step, and the target's states take their places. The library runs the
    head where it runs the target, PyTorch elsewhere.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.

    Raises:
        ValueError: where the head is of another kind, does not fit the target or reads layers that
            the target does not have.

    Example:
        The text is 1 2 3 4 5, and s1 to s4 are the target's states at its tokens; 5 is not run yet.
        The head takes in rows of a state and the token after it: s1 2, s2 3, s3 4, s4 5. The last
        one says 6 or 8, so both are drafted. For 6 it reads its own output at that row in the place
        of s5, and says 7. The target runs 5, 6, 8 and 7, and says 6 after 5, 9 after 6: it keeps 6
        and goes on with 9. The head takes in s5 6 and s6 9; the rows of 8 and 7 are dropped.
    """

    name: ClassVar[str] = "eagle"
    native: NativeHead | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.fitting(EagleConfig)
        object.__setattr__(self, "native", native_head(self.trained, self.target))
        self.require_runtime(self.native)

    @property
    def learnable(self) -> TrainedHead:
        return self.trained

    def with_head(self, trained: TrainedHead) -> "Eagle":
        return replace(self, trained=trained)

    def start(self, request: DraftRequest) -> DraftSession:
        if self.native is not None:
            return HeadDrafts(self, request, native_text(self.native, self, request.sampler))
        embeddings, placed = self.target.embeddings_and_head, self.placed
        text = self.runner.eagle_text(placed.network, embeddings, placed.logits)
        return HeadDrafts(self, request, text)
