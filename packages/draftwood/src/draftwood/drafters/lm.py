"""Draft with a small language model between the target's embedding and output head."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.drafters.ahead import BranchingSession
from draftwood.drafters.draft_vocabulary import DraftVocabulary, HeadDrafter, working_dtype
from draftwood.drafters.drafter import (
    DraftRequest,
    DraftSession,
    VerifiedTree,
)
from draftwood.drafters.head_rows import HeadRows, Layout
from draftwood.heads.kinds import require_kind
from draftwood.heads.lm import LmHead
from draftwood.models.requirements import require_ability
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Lm(HeadDrafter):
    """A tree that a draft LM writes, with one call of it per level.

    The LM (``LmHead``; trained as in DistillSpec, Zhou et al. 2024, arXiv:2310.08461) reads tokens
    alone, so it needs no hidden states and drafts as well behind a draft as behind the text.

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
    head: LmHead = field(init=False, repr=False)

    def __post_init__(self) -> None:
        head, target = require_kind(self.trained.head, LmHead, self.name), self.target
        require_ability(target, "embeddings_and_head", self.name)
        if head.config.sizes.hidden != target.hidden_size:
            raise ValueError(
                f"the drafter reads embeddings of {head.config.sizes.hidden} entries, the target"
                f" has {target.hidden_size}; take a drafter of this model"
            )
        dtype = working_dtype(target)
        object.__setattr__(self, "head", head.to(target.device, dtype))
        vocabulary = DraftVocabulary(self.trained.draft_tokens, target, dtype)
        object.__setattr__(self, "vocabulary", vocabulary)

    def start(self, request: DraftRequest) -> DraftSession:
        return _LmSession(self, request)


class _LmSession(BranchingSession):
    def __init__(self, config: Lm, request: DraftRequest) -> None:
        self.drafter, self.rng = config, request.rng
        self.sampler = request.sampler.for_drafting()
        self.rows = HeadRows(config.head.config, config.head.proj.weight)
        self.late: list[int] = []  # tokens of the text whose rows are not in the cache
        self.ahead: list[int] = []  # the root, where its row is in the cache before it is text
        self.first: _LmSession | None = None  # has the rows of this one's prompt
        self.go_on: Callable[[], None] = _always
        self.newest: Float[Tensor, "1 dim"] | None = None  # state after the last root

    def branch(self, rng: Rng, go_on: Callable[[], None]) -> "_LmSession":
        other = copy(self)
        other.rng, other.go_on = rng, go_on
        other.late, other.ahead = list(self.late), list(self.ahead)
        head = self.drafter.head
        other.rows = HeadRows(head.config, head.proj.weight)
        other.rows.copy(self.rows, self.rows.text)
        return other

    @torch.no_grad()
    def logits_after(self, tree: DraftTree) -> Float[Tensor, "nodes vocab"] | None:
        if self.newest is None:
            return None
        below = self._run(tree.tokens[1:], self.rows.below(tree, 1))
        self.rows.drop()
        vocabulary = self.drafter.vocabulary
        return vocabulary.widened(vocabulary.logits(torch.cat([self.newest, below]))).cpu()

    def follow(self, first: DraftSession) -> None:
        if isinstance(first, _LmSession):
            self.first = first

    def update(self, verified: VerifiedTree) -> None:
        self.late += verified.tokens[len(self.ahead) :]
        self.ahead = []

    @torch.no_grad()
    def propose(self, root: int, context: Context) -> DraftTree:
        self._copy_prompt()
        self.newest = None
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        newest = self.newest = self._take_in([*self.late, root])
        self.late, self.ahead = [], [root]

        def score(tree: DraftTree, first: int) -> Float[Tensor, "nodes draft_vocab"]:
            states = newest if first == 0 else self._run(tree.tokens[first:], below(tree, first))
            return self.drafter.vocabulary.logits(states)

        below, shape, vocabulary = self.rows.below, self.drafter.shape, self.drafter.vocabulary
        tree = vocabulary.grow(shape, root, score, self.sampler, context, self.rng)
        self.rows.drop()
        return tree

    def _take_in(self, tokens: list[int]) -> Float[Tensor, "1 dim"]:
        """Append rows of the text; gives the state from which the next token follows."""
        newest = None
        for part, layout in self.rows.chunks(len(tokens)):
            newest = self._run(torch.tensor(tokens[part], device=self.rows.device), layout)
        assert newest is not None  # the root is among them
        return newest[-1:]

    def _run(self, tokens: Tensor, layout: Layout) -> Float[Tensor, "new dim"]:
        self.go_on()
        places, seen = layout
        head, embeddings = self.drafter.head, self.drafter.target.embeddings_and_head
        embedded = embeddings.embed(tokens).to(head.proj.weight.dtype)
        return head(embedded, places, self.rows.cache.attend(seen))

    def _copy_prompt(self) -> None:
        """Take over the rows that were run for another request with the same prompt."""
        first, self.first = self.first, None
        if first is not None and self.rows.copy(first.rows, self.rows.text + len(self.late)):
            self.late = []


def _always() -> None:
    """Nothing ends a session's passes."""
