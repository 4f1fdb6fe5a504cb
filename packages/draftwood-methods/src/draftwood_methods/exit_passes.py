"""Passes of the target that stop before a layer, and what it would say there."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from draftwood.arrays import as_array
from draftwood.drafters.drafter import DraftRequest
from draftwood.drafters.partial import OwnPasses
from draftwood.models.model import Layers, Model
from draftwood.models.requirements import require_ability
from draftwood.sampling import Context
from draftwood.shapes import Shape
from draftwood.tree import DraftTree
from draftwood_methods.exits import Exits
from draftwood_methods.layers import require_depth
from draftwood_torch.tensors import as_tensor


def require_exits(model: Model, who: str, layer: int = 1) -> None:
    """Raise ValueError unless a pass of a model can stop before a layer and go on later."""
    require_depth(model, who)
    for ability in ("resume", "embeddings_and_head"):
        require_ability(model, ability, who)
    if not 1 <= layer < model.layers:
        raise ValueError(f"an exit is before one of layers 1..{model.layers - 1}, got {layer}")


class ExitPasses(OwnPasses):
    """Passes that stop before a layer, and what the model would say there."""

    def __init__(self, request: DraftRequest, exits: Exits | None, nodes: int) -> None:
        super().__init__(request, nodes)
        self.exits, self.head = exits, self.model.embeddings_and_head

    def chain(self, shape: Shape, layer: int, root: int, context: Context) -> DraftTree:
        """A tree of this shape that is drawn from what the model would say there."""

        def logits(tree: DraftTree, first: int) -> Float[np.ndarray, "nodes vocab"]:
            return self.logits(layer, self.run(tree, first, Layers(stop=layer)).hidden[layer])

        return self.grow(shape, root, context, logits)

    def logits(
        self,
        layer: int,
        hidden: Any,
        tokens: Int[np.ndarray, " part"] | None = None,
    ) -> Float[np.ndarray, "rows part"]:
        """After hidden states [rows dim] of a layer; of some tokens where they are named."""
        if self.exits is None or layer not in self.exits.maps:
            return as_array(self.head.logits(hidden, tokens))
        states = self.exits.normed(layer, as_tensor(hidden))
        return as_array(self.head.logits(states, tokens, normed=True))
