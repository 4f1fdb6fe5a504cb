"""Draft with a head that continues the target's own hidden states."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.drafters.draft_vocabulary import DraftVocabulary, HeadDrafter, working_dtype
from draftwood.drafters.drafter import (
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.head_rows import HeadRows, Layout
from draftwood.heads.eagle import EagleHead
from draftwood.heads.kinds import require_kind
from draftwood.models.model import CHUNK
from draftwood.models.requirements import require_ability
from draftwood.sampling import Context
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Eagle(HeadDrafter):
    """A tree that an EAGLE head drafts, with one call of the head per level.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840). The head reads the target's hidden states of every
    token that became text; behind these it reads what it drafted itself. Rows that were drafted
    leave its cache with the step, and the target's states take their places.

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
        object.__setattr__(self, "head", head.to(target.device, dtype))
        rows = head.lm_head.weight if config.own_head else None
        object.__setattr__(self, "vocabulary", DraftVocabulary(tokens, target, dtype, rows))

    def start(self, request: DraftRequest) -> DraftSession:
        return _EagleSession(self, request)


class _EagleSession(DraftSession):
    def __init__(self, config: Eagle, request: DraftRequest) -> None:
        self.drafter, self.rng = config, request.rng
        self.head, self.config = config.head, config.head.config
        self.sampler = request.sampler.for_drafting()
        self.rows = HeadRows(self.config, self.head.fc.weight)  # each with states of the target
        # Tokens of the sequence whose rows are not in the cache, and the target's states there. The
        # row of a place needs the token at the next one, so the newest always waits.
        self.late: list[int] = []
        self.states: list[Float[Tensor, "places reads dim"]] = []
        self.first: _EagleSession | None = None  # ran the prompt for this one too

    @property
    def reads(self) -> Reads:
        return Reads(hidden=tuple(dict.fromkeys(self.config.reads)))

    def follow(self, first: DraftSession) -> None:
        assert isinstance(first, _EagleSession)
        self.first = first

    @torch.no_grad()
    def update(self, verified: VerifiedTree) -> None:
        assert verified.output is not None  # it says what it reads
        hidden = verified.output.hidden
        path = list(verified.path)
        self.late += verified.tokens
        self.states.append(torch.stack([hidden[i][path] for i in self.config.reads], dim=-2))
        if len(self.late) > CHUNK:
            self._take_in(self.late[1:])

    @torch.no_grad()
    def propose(self, root: int, context: Context) -> DraftTree:
        self._copy_prompt()
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        state, normed = self._take_in([*self.late[1:], root])
        states = [state]  # of the drafted rows, the root's first

        def score(tree: DraftTree, first: int) -> Float[Tensor, "nodes draft_vocab"]:
            if first == 0:
                return self.drafter.vocabulary.logits(normed)
            above = torch.cat(states)[tree.parents[first:]]
            fed, read = self._run(tree.tokens[first:], above, self.rows.below(tree, first))
            states.append(fed)
            return self.drafter.vocabulary.logits(read)

        shape, vocabulary = self.drafter.shape, self.drafter.vocabulary
        tree = vocabulary.grow(shape, root, score, self.sampler, context, self.rng)
        self.rows.drop()
        return tree

    def _take_in(self, following: list[int]) -> tuple[Tensor, Tensor]:
        """Append the rows whose next tokens are known; gives what the last one says.

        Args:
            following: these tokens.
        """
        states, said = torch.cat(self.states), None
        for part, layout in self.rows.chunks(len(following)):
            tokens = torch.tensor(following[part], device=states.device)
            features = states[part].to(self.head.fc.weight.dtype)
            said = self._run(tokens, self.head.combine(features), layout)
        assert said is not None  # there is a token to follow
        self.late, self.states = self.late[len(following) :], [states[len(following) :]]
        return said[0][-1:], said[1][-1:]

    def _run(
        self, tokens: Int[Tensor, " rows"], state: Float[Tensor, "rows dim"], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        places, seen = layout
        embedded = self.drafter.target.embeddings_and_head.embed(tokens).to(state.dtype)
        return self.head(embedded, state, places, self.rows.cache.attend(seen))

    def _copy_prompt(self) -> None:
        """Take over the rows that were run for another request with the same prompt."""
        first, self.first = self.first, None
        if first is not None and self.rows.copy(first.rows, self.rows.text + len(self.late) - 1):
            self.states, self.late = [torch.cat(self.states)[-1:]], self.late[-1:]
