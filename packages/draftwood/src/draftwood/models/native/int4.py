"""A native model's weights once more, rounded further and in part, to draft with."""

import numpy as np

from draftwood.arrays import Int, as_array
from draftwood.models.native.weights import MATRICES, NativeWeights
from draftwood.native import structures
from draftwood.native.formats import Products
from draftwood.native.matrix import Chosen, LargePages, Matrix


def layer_bits(weights: NativeWeights) -> float:
    """Bits of a weight of the layers, scales included; 0 for a mixture of experts."""
    if weights.is_mixture:
        return 0.0
    count = sum(each.outputs * each.inputs for each in weights.matrices)
    return 8 * (weights.weight_bytes - weights.lm_head.weight_bytes) / count


class RoundedWeights:
    """Matrices of all layers and the output head in fewer bits; all else is the model's own.

    The library runs ``structure`` in the place of the model's, over the same cache.

    Args:
        weights: no mixture of experts where ``layers`` is given.
        layers: what the layers' matrices are rounded to; None leaves them as they are.
        head: likewise of the output head.
        tokens: rows of the output head, in their order; None takes all.
    """

    def __init__(
        self,
        weights: NativeWeights,
        layers: Products | None = "int4",
        head: Products = "int4",
        tokens: Int[np.ndarray, " draft_vocab"] | None = None,
    ) -> None:
        self.weights = weights  # whose memory this reads
        own, depth = weights.structure, weights.depth
        self.layers = (structures.CLayer * depth)(*own.layers[:depth])
        self.structure = type(own).from_buffer_copy(own)
        self.structure.layers = self.layers
        self._kept, self._pages = list[Matrix](), LargePages()
        if layers is not None:
            self._round_layers(layers)
        bias = as_array(weights.lm_head.bias)
        some = None if bias is None or tokens is None else bias[tokens]
        self.structure.lm_head = self._rounded(own.lm_head, head, tokens, some)

    def _round_layers(self, products: Products) -> None:
        for layer in self.layers:
            for name in MATRICES:
                if getattr(layer, name).weights:
                    setattr(layer, name, self._rounded(getattr(layer, name), products))

    def _rounded(
        self,
        matrix: structures.CMatrix,
        products: Products,
        outputs: np.ndarray | None = None,
        bias: np.ndarray | None = None,
    ) -> structures.CMatrix:
        """Some outputs of a matrix with their bias; without these all of it."""
        chosen = Chosen(matrix, np.arange(matrix.outputs) if outputs is None else outputs)
        packed = Matrix.pack(chosen, bias, products, self._pages.take)
        if bias is None:
            packed.structure.bias = matrix.bias
        self.structure.encodings |= packed.structure.encoding
        self._kept.append(packed)
        return packed.structure
