"""Adapter of a native model that acts on some rows of a pass and leaves all others as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwood.arrays import Float, address_of, as_array, bits_of
from draftwood.models.model import Model
from draftwood.models.parts import PackedInput
from draftwood.native import structures

LANES = 16  # outputs of a tile


class NativeRowAdapter:
    """Additions of low rank to a model's matrices, and vectors in the place of embeddings.

    An adapted row's product with a matrix becomes ``base @ x + up @ (down @ x)`` (LoRA, Hu et al.
    2021, arXiv:2106.09685, gated by row as in Samragh et al. 2025, arXiv:2507.11851). Rows beside
    it keep every bit. Factors are rounded to bfloat16; sums are in float32.

    Args:
        decoder: the model whose rows are adapted.
        depth: its layers.
        vectors: [places hidden], as they enter the first layer.
        factors: ``down`` [rank inputs] and ``up`` [outputs rank] by matrix. Matrices are called
            as in ``3.query``, by the layer and one of query, key, value, output, gate, up and
            down; those without factors stay as they are.

    Raises:
        ValueError: for vectors or factors that do not fit.
    """

    def __init__(
        self,
        decoder: structures.CDecoder,
        depth: int,
        vectors: Any,
        factors: Mapping[str, tuple[Any, Any]],
    ) -> None:
        self.decoder, self.depth = decoder, depth
        self.vectors: Float[np.ndarray, "places hidden"] = np.asarray(vectors, np.float32)
        if self.vectors.ndim != 2 or self.vectors.shape[1] != decoder.hidden:
            raise ValueError(
                f"vectors of this model are [places {decoder.hidden}], not"
                f" {list(self.vectors.shape)}"
            )
        self.layers = (structures.CLayerAdapter * depth)()
        self._memory: list[np.ndarray] = []
        for name, (down, up) in factors.items():
            self._add(name, as_array(down), as_array(up))

    def require(self, model: Model, adapted: Sequence[int]) -> None:
        weights = getattr(model, "weights", None)
        if getattr(weights, "structure", None) is not self.decoder:
            raise ValueError("the adapter was made for another model; make one with row_adapter")
        wrong = [place for place in adapted if not 0 <= place < len(self.vectors)]
        if wrong:
            raise ValueError(
                f"the adapter has vectors 0 to {len(self.vectors) - 1}, and a row asks for"
                f" {wrong[0]}; ask for fewer places"
            )

    def _add(self, name: str, down: np.ndarray, up: np.ndarray) -> None:
        index, _, which = name.partition(".")
        known = index.isdecimal() and int(index) < self.depth
        matrix = getattr(self.decoder.layers[int(index)], which, None) if known else None
        if not (isinstance(matrix, structures.CMatrix) and matrix.weights):
            raise ValueError(
                f"the model has no matrix {name!r} to adapt; name one of layers 0 to"
                f" {self.depth - 1}: {', '.join(structures.LAYER_MATRICES)}"
            )
        rank = len(down)
        if (down.shape, up.shape) != ((rank, matrix.inputs), (matrix.outputs, rank)):
            raise ValueError(
                f"{name} takes factors [rank {matrix.inputs}] and [{matrix.outputs} rank], not"
                f" {list(down.shape)} and {list(up.shape)}"
            )
        both = [np.ascontiguousarray(bits_of(each)) for each in (down, _by_tile(up))]
        self._memory += both
        addresses = map(address_of, both)
        setattr(
            self.layers[int(index)], which, structures.CLowRank(*addresses, rank, matrix.inputs)
        )


def _by_tile(up: Float[np.ndarray, "outputs rank"]) -> Float[np.ndarray, "tiles rank lanes"]:
    """Lay the outputs of a tile side by side, with zeros behind the last."""
    outputs, rank = up.shape
    padded = np.pad(np.asarray(up, np.float32), ((0, -outputs % LANES), (0, 0)))
    return padded.reshape(-1, LANES, rank).transpose(0, 2, 1)


class MarkedRows:
    """Adapted rows of a pass as the library reads them, in memory as long as this object.

    Args:
        rows: their numbers in the pass.
        places: the vector that each of them reads.
    """

    def __init__(
        self, adapter: NativeRowAdapter, rows: Sequence[int], places: Sequence[int]
    ) -> None:
        self.adapter, self.rows = adapter, np.array(rows, np.int64)
        self.vectors = np.ascontiguousarray(adapter.vectors[list(places)])
        addresses = address_of(self.rows), address_of(self.vectors)
        self.structure = (structures.CMarkedRows * 1)((adapter.layers, *addresses, len(rows)))


def marked_rows(parts: Sequence[PackedInput]) -> MarkedRows:
    """Find the adapted rows of parts with one adapter."""
    rows, places, end = list[int](), list[int](), 0
    for part in parts:
        end += part.place.count
        rows += range(end - len(part.adapted), end)
        places += part.adapted
    adapter = parts[0].adapter
    assert isinstance(adapter, NativeRowAdapter)  # ``require`` was asked
    return MarkedRows(adapter, rows, places)
