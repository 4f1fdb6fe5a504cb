"""Draft with a decoder of its own that answers a query for each of the next places."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from draftwood.arrays import as_array
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood_methods.heads.specdec import SpecdecConfig, SpecdecHead
from draftwood_torch.tensors import as_tensor


@dataclass(frozen=True, eq=False)
class Specdec(HeadDrafter):
    """A tree whose level i the i-th query of an independent drafter gives, all in one call.

    SpecDec's Spec-Drafter (Xia et al. 2022, arXiv:2203.16487) as ``SpecdecHead`` adapts it to
    models without a source. It reads tokens alone. The distribution of a place does not depend on
    what was drafted before it, so all nodes of a level get the same draft tokens.

    Args:
        trained: drafter, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.

    Raises:
        ValueError: where the drafter is of another kind or does not fit the target.

    Example:
        The text is 1 2 3 4 5. The drafter reads these tokens, and its three queries say 6, 7 and 9
        for the next three places. The target runs 5 6 7 9 at once, and says 6, 7, 8 and 0: it keeps
        6 7 and goes on with 8.
    """

    name: ClassVar[str] = "specdec"

    def __post_init__(self) -> None:
        self.fitting(SpecdecConfig)
        _ = self.placed

    def start(self, request: DraftRequest) -> DraftSession:
        return _SpecdecSession(self, request)


class _SpecdecSession(DraftSession):
    def __init__(self, drafter: Specdec, request: DraftRequest) -> None:
        self.drafter, self.rng = drafter, request.rng
        self.sampler = request.sampler.for_drafting()
        self.head: SpecdecHead = drafter.placed.network
        self.caches = self.head.caches()
        self.late: list[int] = []  # tokens of the text that are not in the caches
        self.has_root = False  # where the newest token in them is not known as text yet

    def update(self, verified: VerifiedTree) -> None:
        self.late += verified.tokens[self.has_root :]
        self.has_root = False

    def propose(self, root: int, context: Context) -> DraftTree:
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        places = min(context.max_draft_len, self.head.config.places)
        levels = self._levels(root)

        def score(tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
            return levels[tree.depths[first:]]

        within = replace(context, max_draft_len=places)
        shape, vocabulary = self.drafter.shape, self.drafter.vocabulary
        return vocabulary.grow(shape, root, score, self.sampler, within, self.rng)

    @torch.no_grad()
    def _levels(self, root: int) -> Float[np.ndarray, "places draft_vocab"]:
        """Logits of the places behind the root, which no longer tree than these asks for."""
        drafter, placed = self.drafter, self.drafter.placed
        tokens = torch.tensor([*self.late, root], device=str(drafter.target.device))
        embedded = as_tensor(drafter.target.embeddings_and_head.embed(tokens))
        embedded = embedded.to(placed.dtype)
        self.late, self.has_root = [], True
        return as_array(placed.logits(self.head.draft(self.caches, embedded)))
