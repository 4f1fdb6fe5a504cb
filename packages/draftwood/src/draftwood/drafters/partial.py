"""Common parts of drafters that run the target itself, in part."""

from collections.abc import Callable

import numpy as np

from draftwood.arrays import Float
from draftwood.drafters.draft_model import DraftDistributions, ProbsBuffer
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.models.model import ForwardInput, Layers, ModelOutput
from draftwood.models.requirements import require_layers
from draftwood.sampling import Context
from draftwood.shapes import Shape
from draftwood.shapes.base import RowsAfter, grow_sound
from draftwood.tree import DraftTree

Logits = Callable[[DraftTree, int], Float[np.ndarray, "nodes draft_vocab"]]
"""The logits with which to draft behind the nodes from one on."""


class OwnPasses:
    """Trees that are drawn from passes of the target over a part of itself.

    There is no second model and no second cache: what is drafted is written after the committed
    tokens, and overwritten when the tree goes through the whole target.

    Args:
        nodes: of the largest tree.
    """

    def __init__(self, request: DraftRequest, nodes: int) -> None:
        self.sampler, self.rng = request.sampler.for_drafting(), request.rng
        self.session, self.model = request.target, request.target.model
        self.memory = ProbsBuffer(nodes, self.model.vocab_size)

    def run(self, tree: DraftTree, first: int, layers: Layers) -> ModelOutput:
        """A pass over the nodes from ``first`` on."""
        return self.model.forward([ForwardInput(self.session, tree, first, layers=layers)])[0]

    def grow(self, shape: Shape, root: int, context: Context, logits: Logits) -> DraftTree:
        """A tree of this shape whose nodes are drawn from these logits."""
        laws = DraftDistributions(self.sampler, context, self.model.vocab_size, self.memory)

        def expand(tree: DraftTree, first: int) -> RowsAfter:
            return laws.rows_after(logits(tree, first), tree, first, shape)

        return grow_sound(shape, root, expand, self.rng, context.max_draft_len)


class PartialSession(DraftSession):
    """Drafts with passes through some of the target's layers, or over a part of its cache.

    Raises:
        ValueError: where the target cannot run these layers.
    """

    def __init__(self, request: DraftRequest, shape: Shape, layers: Layers, who: str) -> None:
        require_layers(request.target.model, layers, who)
        self.shape, self.layers = shape, layers
        self.passes = OwnPasses(request, shape.nodes)

    def propose(self, root: int, context: Context) -> DraftTree:
        return self.passes.grow(
            self.shape,
            root,
            context,
            lambda tree, first: self.passes.run(tree, first, self.layers).rows,
        )

    def update(self, verified: VerifiedTree) -> None:
        """Nothing to learn: the target's cache is the draft's cache."""
