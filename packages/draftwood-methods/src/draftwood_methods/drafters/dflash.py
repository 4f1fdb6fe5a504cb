"""Draft a block of mask tokens in one pass over the target's states."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.arrays import as_array
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood_methods.heads.dflash import DflashConfig, DflashHead

ROWS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Dflash(HeadDrafter):
    """A tree that one pass of a block head drafts, each token corrected by the one before it.

    After DFlash (Chen et al. 2026, arXiv:2602.06036) and DSpark (arXiv:2607.05147). The head keeps
    keys and values of the target's states at all places of the text, and runs the newest token
    with mask tokens behind it, once for a step. What follows a node depends on its level and, with
    a Markov term, on its own token: a first-order chain, whose rows are known, so that rejection
    keeps the target's distribution.

    Differs from the papers: any shape grows the tree, as deep as the block is long.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.

    Raises:
        ValueError: where the head is of another kind, does not fit the target or reads layers that
            the target does not have.

    Example:
        The text is 1 2 3 4 5, and s1 to s4 are the target's states at its tokens; 5 is not run
        yet. The block is 5 and two masks. One pass over it and s1 to s4 gives three slots: the
        first says 6 or 8, the second 7, but after 8 its Markov term says 9. Drafted are 6 7 and
        8 9. The target says 8 after 5 and 9 after 8, then 0: it keeps 8 9 and goes on with 0.
    """

    name: ClassVar[str] = "dflash"

    def __post_init__(self) -> None:
        self.fitting(DflashConfig)
        _ = self.placed

    def start(self, request: DraftRequest) -> DraftSession:
        return _DflashSession(self, request)


class _DflashSession(DraftSession):
    def __init__(self, config: Dflash, request: DraftRequest) -> None:
        self.drafter, self.rng = config, request.rng
        self.head: DflashHead = config.placed.network
        self.sampler, self.same_text = request.sampler.for_drafting(), request.same_text
        self.cache = self.head.start()
        self.late: list[Float[Tensor, "places reads dim"]] = []  # the target's states at new places
        self.slots: Float[Tensor, "slots dim"] | None = None  # of the newest block

    @property
    def reads(self) -> Reads:
        return Reads(hidden=tuple(dict.fromkeys(self.head.config.reads)))

    @property
    def needs_prompt(self) -> bool:
        return not self.same_text

    @torch.no_grad()
    def update(self, verified: VerifiedTree) -> None:
        if verified.output is None:
            return  # of tokens in the cache: the head's rows begin behind them
        hidden, path = verified.output.hidden, list(verified.path)
        states = [torch.as_tensor(hidden[layer])[path] for layer in self.head.config.reads]
        self.late.append(torch.stack(states, dim=-2))

    @torch.no_grad()
    def propose(self, root: int, context: Context) -> DraftTree:
        most = min(context.max_draft_len, self.head.config.frames)
        if most < 1:
            return DraftTree.of([root], [-1])
        self.slots = self._block(root)
        drafter, within = self.drafter, replace(context, max_draft_len=most)
        return drafter.vocabulary.grow(
            drafter.shape, root, self._score, self.sampler, within, self.rng
        )

    def _block(self, root: int) -> Float[Tensor, "slots dim"]:
        """Run the block behind the text; the cache takes the text's new places."""
        states = torch.cat(self.late).to(self.drafter.placed.dtype)
        rows, self.late = self.head.combine(states), [states[:0]]
        *earlier, newest = rows.split(ROWS_AT_ONCE) if len(rows) else (rows,)
        embedded = self._embedded([root])[0]
        for chunk in earlier:
            self.head.draft(self.cache, chunk, embedded)
        return self.head.draft(self.cache, newest, embedded)

    @torch.no_grad()
    def _score(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits after the nodes from ``first`` on, by their levels and their own tokens."""
        assert self.slots is not None
        states = self.slots[tree.depths[first:].tolist()]
        inner = 1 if first == 0 else 0  # the root's slot has read the root
        if len(states) > inner:
            embedded = self._embedded(tree.token_list[first + inner :])
            states = torch.cat([states[:inner], self.head.corrected(states[inner:], embedded)])
        return as_array(self.drafter.placed.logits(states))

    def _embedded(self, tokens: list[int]) -> Float[Tensor, "tokens dim"]:
        target = self.drafter.target
        embedded = target.embeddings_and_head.embed(torch.tensor(tokens, device=str(target.device)))
        return torch.as_tensor(embedded).to(self.drafter.placed.dtype)
