"""Tensors of a trained head: their shapes by its settings, and how files store them.

In files they are floats, or matrices are llama.cpp's blocks of 4 or 8 bits. The library packs
blocks as they are stored: floats of all of them, made and rounded again, took a quarter of the time
until a model of a billion weights answered.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from draftwood.arrays import FloatType, from_bfloat16, rounded, to_bfloat16
from draftwood.native import matrix
from draftwood.native.formats import HeadSizes
from draftwood.native.matrix import Blocks

BlockFormat = Literal["Q8_0", "Q4_1"]
"""Blocks of 32 weights: 8 bits with a step, or 4 bits with a step and a least value."""
StoredType = FloatType | BlockFormat
BLOCK = 32
"""Weights of a row that share a step."""
BLOCK_BYTES: Mapping[str, int] = {"Q8_0": 34, "Q4_1": 20}


class TensorShapes(dict[str, tuple[int, ...]]):
    """Shapes by the names of a network's ``state_dict()``, part after part.

    Args:
        sizes: of the head's layers.
    """

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes = sizes

    def norm(self, *names: str) -> None:
        """Add the weights of norms of a state."""
        self.update({f"{name}.weight": (self.sizes.hidden,) for name in names})

    def matrix(self, name: str, outputs: int, inputs: int) -> None:
        """Add the weights of a linear map."""
        self[f"{name}.weight"] = outputs, inputs

    def layer(self, place: str = "", inputs: int | None = None, copies: int = 1) -> None:
        """Add a decoder layer.

        Args:
            place: of the layer in the network, with its point: the beginning of all its names.
            inputs: entries that attention reads; None for those of a state.
            copies: of the residual stream.
        """
        sizes, wide = self.sizes, inputs or self.sizes.hidden
        queries, keys = sizes.heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.norm(f"{place}input_layernorm", f"{place}post_attention_layernorm")
        self.matrix(f"{place}self_attn.q_proj", queries, wide)
        self.matrix(f"{place}self_attn.k_proj", keys, wide)
        self.matrix(f"{place}self_attn.v_proj", keys, wide)
        self.matrix(f"{place}self_attn.o_proj", sizes.hidden, queries)
        self.mlp(f"{place}mlp", copies)

    def mlp(self, place: str, copies: int = 1) -> None:
        """Add a gated network that gives ``copies`` states side by side."""
        hidden, inner = self.sizes.hidden, self.sizes.intermediate_size
        self.matrix(f"{place}.gate_proj", inner, hidden)
        self.matrix(f"{place}.up_proj", inner, hidden)
        self.matrix(f"{place}.down_proj", copies * hidden, inner)

    def pairwise(self, rank: int) -> None:
        """Add the term of low rank between neighbouring tokens."""
        self.matrix("pairwise.before_proj", rank, self.sizes.hidden)
        self.matrix("pairwise.after_proj", self.sizes.hidden, rank)


def require_format(blocks: object) -> None:
    """Raise ValueError for what is neither a format of blocks nor None."""
    if blocks is not None and blocks not in BLOCK_BYTES:
        raise ValueError(f"blocks are {' or '.join(BLOCK_BYTES)}, not {blocks!r}")


def is_blocks(stored: StoredType) -> bool:
    return stored in BLOCK_BYTES


def encoded(name: str, weight: np.ndarray, stored: StoredType) -> np.ndarray:
    """A weight as a file has it; blocks are for matrices of whole ones, all else is bfloat16 beside
    them.

    Raises:
        ValueError: for weights beyond a type's largest.
    """
    if stored in ("Q8_0", "Q4_1"):
        if _makes_blocks(name, weight.shape):
            return _in_blocks(weight, stored)
        stored = "bfloat16"
    with np.errstate(over="ignore"):
        floats = rounded(weight, stored)
    if not np.isfinite(floats).all():
        raise ValueError(f"{name} has weights that {stored} cannot hold; take float32")
    return to_bfloat16(floats) if stored == "bfloat16" else floats.astype(stored)


def _makes_blocks(name: str, shape: tuple[int, ...]) -> bool:
    """True for matrices, one or several, whose rows are whole blocks; tables of vectors, such as
    biases and queries, are no matrices.
    """
    return name.endswith("weight") and len(shape) > 1 and shape[-1] % BLOCK == 0


def _in_blocks(weight: np.ndarray, stored: BlockFormat) -> np.ndarray:
    """Matrices, one or several, in blocks [... row bytes]."""
    from gguf import GGMLQuantizationType, quantize

    rows = weight.reshape(-1, weight.shape[-1]).astype(np.float32)
    blocks = quantize(rows, GGMLQuantizationType[stored])
    return blocks.reshape(*weight.shape[:-1], -1)


def decoded(stored: Blocks | np.ndarray) -> np.ndarray:
    """A weight of a file in float32, in memory of its own."""
    if isinstance(stored, Blocks):
        return matrix.decoded(stored)
    return from_bfloat16(stored) if stored.dtype == np.uint16 else stored.astype(np.float32)


def inputs_of(row_bytes: int, blocks: BlockFormat) -> int:
    """Weights of a row of so many bytes."""
    return row_bytes // BLOCK_BYTES[blocks] * BLOCK


class StoredWeights(Mapping[str, np.ndarray]):
    """Weights of a file by their names, in float32, each in memory of its own that stays.

    Args:
        arrays: as the file has them.
        format: of the matrices among them that are bytes; None for floats alone.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], format: BlockFormat | None) -> None:
        self._arrays: dict[str, Blocks | np.ndarray] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        for name, array in arrays.items():
            if array.dtype == np.uint8 and format is not None:
                *outputs, row_bytes = array.shape
                rows = np.array(array).reshape(-1, row_bytes)
                self._arrays[name] = Blocks(format, rows, inputs_of(row_bytes, format))
                self._outputs[name] = tuple(outputs)
            else:
                self._arrays[name] = decoded(array)

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._arrays[name]
        if isinstance(found, Blocks):
            floats = decoded(found).reshape(*self._outputs[name], found.inputs)
            found = self._arrays[name] = floats
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def as_stored(self) -> Mapping[str, Blocks | np.ndarray]:
        """Weights by their names; blocks for those that nobody asked for in float32, several
        matrices of one name below each other.
        """
        return dict(self._arrays)


def as_stored(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Weights by their names, as blocks where a file has them and nobody changed them."""
    return weights.as_stored() if isinstance(weights, StoredWeights) else weights


def is_finite(weight: Blocks | np.ndarray) -> bool:
    """True for a weight without NaN and infinity; of blocks their scales are read alone."""
    if not isinstance(weight, Blocks):
        return bool(np.isfinite(weight).all())
    size = BLOCK_BYTES[weight.format]
    scales = 4 if weight.format == "Q4_1" else 2
    heads = weight.stored.reshape(-1, size)[:, :scales]
    return bool(np.isfinite(np.ascontiguousarray(heads).view(np.float16)).all())
