"""Draft with a head that continues the target's own hidden states."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.drafters.head_drafts import HeadDrafts, native_text
from draftwood.drafters.head_rows import EagleText, vocabulary_of, working_dtype
from draftwood.heads.eagle import EagleHead
from draftwood.heads.kinds import require_kind
from draftwood.heads.packed import native_head
from draftwood.heads.trained import TrainedHead
from draftwood.models.requirements import require_ability
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
    head: EagleHead = field(init=False, repr=False)
    native: NativeHead | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        head = require_kind(self.trained.head, EagleHead, self.name)
        config, target = head.config, self.target
        for ability in ("hidden", "embeddings_and_head"):
            require_ability(target, ability, self.name)
        if config.sizes.hidden != target.hidden_size:
            raise ValueError(
                f"the drafter reads hidden states of {config.sizes.hidden} entries, the target has"
                f" {target.hidden_size}; take a drafter of this model"
            )
        if not all(0 <= layer <= target.layers for layer in config.reads):
            raise ValueError(
                f"the drafter reads layers {list(config.reads)}, the target has 0..{target.layers};"
                " take a drafter of this model"
            )
        tokens = self.trained.draft_tokens
        dtype = working_dtype(target)
        object.__setattr__(self, "head", head.to(str(target.device), dtype))
        rows = head.lm_head.weight if config.own_head else None
        object.__setattr__(self, "vocabulary", vocabulary_of(tokens, target, dtype, rows))
        object.__setattr__(self, "native", native_head(self.trained, target))

    @property
    def learnable(self) -> TrainedHead:
        return self.trained

    def with_head(self, trained: TrainedHead) -> "Eagle":
        return replace(self, trained=trained)

    def start(self, request: DraftRequest) -> DraftSession:
        if self.native is not None:
            return HeadDrafts(self, request, native_text(self.native, self, request.sampler))
        embeddings = self.target.embeddings_and_head
        text = EagleText(self.head, embeddings, self.vocabulary.logits)
        return HeadDrafts(self, request, text)
