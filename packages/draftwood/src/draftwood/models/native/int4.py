"""A native model's weights once more, rounded to 4 bits, to draft for itself."""

import torch

from draftwood.models.native.weights import MATRICES, NativeWeights
from draftwood.native import structures
from draftwood.native.library import library
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads

LEAST_BITS = 6.5
"""Bits of a weight below which 4 would save too little to stand in for it."""


def saves_by_int4(weights: NativeWeights) -> bool:
    """True if 4 bits would save enough, and this CPU multiplies them fast."""
    own = weights.structure
    layers = own.layers[: weights.depth]
    matrices = [getattr(layer, name) for layer in layers for name in MATRICES]
    count = sum(each.outputs * each.inputs for each in (*matrices, own.lm_head))
    mixed = any(layer.experts.count for layer in layers)
    fast = bool(library().draftwood_instructions(True))
    return fast and not mixed and 8 * weights.weight_bytes > LEAST_BITS * count


class Int4Weights:
    """The matrices of all layers and the output head in 4 bits; all else is the model's own.

    The library runs ``structure`` in the place of the model's, over the same cache.

    Args:
        weights: no mixture of experts.
    """

    def __init__(self, weights: NativeWeights) -> None:
        self.weights = weights  # whose memory this reads
        own, depth = weights.structure, weights.depth
        self.layers = (structures.CLayer * depth)(*own.layers[:depth])
        self.structure = type(own).from_buffer_copy(own)
        self.structure.layers = self.layers
        self._kept: list[Matrix] = []
        for layer in self.layers:
            for name in MATRICES:
                if getattr(layer, name).weights:
                    setattr(layer, name, self._in_4_bits(getattr(layer, name)))
        self.structure.lm_head = self._in_4_bits(own.lm_head)

    def _in_4_bits(self, matrix: structures.CMatrix) -> structures.CMatrix:
        outputs = torch.arange(matrix.outputs)
        weights = torch.empty(matrix.outputs, matrix.inputs, dtype=torch.float32)
        library().draftwood_read_outputs(
            matrix, outputs.data_ptr(), len(outputs), weights.data_ptr(), threads()
        )
        packed = Matrix.pack(weights, None, "int4")
        packed.structure.bias = matrix.bias
        self.structure.encodings |= packed.structure.encoding
        self._kept.append(packed)
        return packed.structure
