"""A native model's weights once more, in 4 bits."""

from typing import TYPE_CHECKING

import torch

from draftwood.native import structures
from draftwood.native.library import library
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads

if TYPE_CHECKING:
    from draftwood.models.native import NativeModel

LEAST_BITS = 6.5
"""Of a weight, below which 4 bits would save too little to stand in for it."""

MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
"""Of a layer."""


def has_shadow(model: "NativeModel") -> bool:
    """Whether 4 bits would save enough, and this CPU multiplies them fast."""
    layers = model.structure.layers[: model.depth]
    matrices = [getattr(layer, name) for layer in layers for name in MATRICES]
    weights = sum(each.outputs * each.inputs for each in (*matrices, model.structure.lm_head))
    mixed = any(layer.experts.count for layer in layers)
    fast = bool(library().draftwood_instructions(True))
    return fast and not mixed and 8 * model.weight_bytes > LEAST_BITS * weights


class Shadow:
    """What the library runs in the place of the model: all matrices of the layers, and the output
    head, rounded to 4 bits. All else, the cache among it, is the model's own.

    Args:
        model: not a mixture of experts.
    """

    def __init__(self, model: "NativeModel") -> None:
        self.model = model  # whose memory this reads
        own, depth = model.structure, model.depth
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
