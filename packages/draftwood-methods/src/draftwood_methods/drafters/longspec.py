"""Draft for long texts with a head that reads the target's own cache."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.arrays import as_array
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.models.requirements import require_ability
from draftwood.models.session import PooledSession
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood_methods.heads.longspec import LongspecConfig, LongspecHead
from draftwood_torch.tensors import as_tensor


@dataclass(frozen=True, eq=False)
class Longspec(HeadDrafter):
    """A tree that a LongSpec head drafts, with one call of the head per level.

    LongSpec (Yang et al. 2025, arXiv:2502.17421). The head keeps a window of the text and attends
    to the target's keys and values for the rest. What is drafted, and the root, are not in the
    target's cache yet: they see each other in the window alone.

    Differs from the paper: trees of any shape, verified by a rule that is exact at every
    temperature, which the published code is at 0 alone; the cache of the layer that the head was
    trained for, which need not be the last.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.

    Raises:
        ValueError: where the head is of another kind or does not fit the target, and for targets
            whose cache cannot be read.

    Example:
        The window has two tokens, and the text is 1 2 3 4 5. The target's cache holds 1 2 3 4. The
        head's row of 5 sees 4 and itself in the window and 1 2 3 4 in the cache, and says 6; the
        row of 6 sees 5 and itself, and the same cache, and says 7. The target runs 5, 6 and 7, and
        says 6, 7 and 8: it keeps 6 7 and goes on with 8. Its cache now holds 5 6 7 too.
    """

    name: ClassVar[str] = "longspec"

    def __post_init__(self) -> None:
        config = self.fitting(LongspecConfig)
        require_ability(self.target, "cache", self.name)
        if not 0 <= config.layer < self.target.layers:
            raise ValueError(
                f"the drafter reads the cache of layer {config.layer}, the target has layers"
                f" 0..{self.target.layers - 1}; take a drafter of this model"
            )
        _ = self.placed

    def start(self, request: DraftRequest) -> DraftSession:
        return _LongspecSession(self, request)


class _LongspecSession(DraftSession):
    def __init__(self, drafter: Longspec, request: DraftRequest) -> None:
        assert isinstance(request.target, PooledSession)  # its cache can be read
        self.drafter, self.rng, self.target = drafter, request.rng, request.target
        self.sampler = request.sampler.for_drafting()
        self.head: LongspecHead = drafter.placed.network
        self.text, self.late = self.head.start(), list[int]()

    def update(self, verified: VerifiedTree) -> None:
        self.late += verified.tokens

    @torch.no_grad()
    def propose(self, root: int, context: Context) -> DraftTree:
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        self._take_in()
        shape, vocabulary = self.drafter.shape, self.drafter.vocabulary
        tree = vocabulary.grow(shape, root, self._level, self.sampler, context, self.rng)
        self.text.drop()
        return tree

    def _take_in(self) -> None:
        """Take in tokens that became text, and read the target's cache as it is now."""
        config = self.head.config
        if self.late:
            newest = torch.tensor(
                self.late[-config.window :], device=str(self.drafter.target.device)
            )
            self.text.take(self._embed(newest), len(self.late))
            self.late = []
        if config.reads_cache:
            pool, target = self.target.model.pool, self.target
            with pool.lock:
                keys, values = pool.layer_of(target.slot, config.layer, target.length)
            self.text.read_from(as_tensor(keys), as_tensor(values))

    def _level(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits after the nodes from ``first`` on."""
        device = str(self.drafter.target.device)
        tokens, depths, ancestors = (
            as_tensor(each[first:], device) for each in (tree.tokens, tree.depths, tree.ancestors)
        )
        states = self.text.run(self._embed(tokens), depths, ancestors)
        return as_array(self.drafter.placed.logits(states))

    def _embed(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows dim"]:
        embedded = self.drafter.target.embeddings_and_head.embed(tokens)
        return as_tensor(embedded).to(self.text.text.dtype)
