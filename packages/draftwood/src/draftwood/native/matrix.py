"""Matrices as the library stores them: packed from floats, or from the blocks of a GGUF file."""

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from draftwood.arrays import (
    ALIGNMENT,
    Float,
    Int,
    address_of,
    aligned,
    as_array,
    as_floats,
    bits_of,
    is_bfloat16,
    like,
)
from draftwood.native.library import integers, library
from draftwood.native.structures import CMatrix, CStoredBlocks
from draftwood.native.threads import threads
from draftwood.storage.memory import LARGE_PAGE, prefer_large_pages

# How rows are encoded for a product; a matrix asks for one of them.
FLOATS, HALVES, BYTES = 1, 2, 4
# What is made here from weights in floats; Q4_1 where they lie on 16 even steps.
FROM_FLOATS = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int8": "Q8_0",
    "int4": "Q4_1",
}
LAYOUT = 1
"""Version of the layout of matrices; raised with every change, so that stored ones are packed
again. The layout is the same on every CPU.
"""


@functools.cache
def formats() -> dict[str, int]:
    """Names of the formats as GGUF files have them, and their numbers in the library."""
    names, offered = list[str](), library()
    while (name := offered.draftwood_format_name(len(names))) is not None:
        names.append(name.decode())
    return {name: number for number, name in enumerate(names)}


def kept_as(format: str, products: str) -> str:
    """Format in which a file's matrix is kept: its own, except bfloat16 in float32 products, since
    products with bfloat16 would round their rows.
    """
    return "F32" if (format, products) == ("BF16", "float32") else format


def block_formats() -> list[str]:
    """The formats of blocks of codes: all but floats."""
    offered = library()
    return [name for name, number in formats().items() if offered.draftwood_block_bytes(number)]


@dataclass(frozen=True, eq=False)
class Blocks:
    """A matrix as a GGUF file stores it; nothing is read before it is packed.

    Attributes:
        format: llama.cpp's name, such as Q4_K.
        stored: bytes of the file, one row of blocks for each row of the matrix.
        inputs: of the matrix.
        order: the stored row of each output; None where they are the same.
    """

    format: str
    stored: np.ndarray
    inputs: int
    order: Int[np.ndarray, " outputs"] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.stored) if self.order is None else len(self.order), self.inputs)

    def __getitem__(self, outputs: slice | Int[np.ndarray, " chosen"]) -> "Blocks":
        """Some of the outputs, by their range or their numbers."""
        if self.order is None and isinstance(outputs, slice):
            return Blocks(self.format, self.stored[outputs], self.inputs)
        return Blocks(self.format, self.stored, self.inputs, self.rows()[outputs])

    @property
    def mark(self) -> tuple[object, ...]:
        """Format, shape, and which rows of its file it takes, to tell it from others there."""
        order = 0 if self.order is None else crc32(np.ascontiguousarray(self.order).data)
        whole, begin = self._in_file()
        return (self.format, *self.shape, whole.nbytes, begin, order)

    def _in_file(self) -> tuple[np.ndarray, int]:
        """The array that the rows are a part of, and bytes there before them."""
        whole = self.stored
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        return whole, self.stored.ctypes.data - whole.ctypes.data

    def let_go(self) -> None:
        """Let the system drop the pages that were read when it needs the memory."""
        mapped, first = self._in_file()
        if not isinstance(mapped.base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = -(-first // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        count = first + self.stored.nbytes - begin
        if count > 0:
            mapped.base.madvise(mmap.MADV_DONTNEED, begin, count)

    def read(self) -> np.ndarray:
        """The stored rows, one behind the other."""
        return np.ascontiguousarray(self.stored)

    def rows(self) -> Int[np.ndarray, " outputs"]:
        """The stored row of each output."""
        return np.arange(self.shape[0]) if self.order is None else self.order

    def floats(self) -> Float[np.ndarray, "outputs inputs"]:
        """The file's own numbers, in float32."""
        from gguf import GGMLQuantizationType, dequantize

        values = dequantize(self.read(), GGMLQuantizationType[self.format])
        found = np.array(values, np.float32).reshape(-1, self.inputs)
        return found if self.order is None else found[self.order]


class Chosen:
    """Outputs of a matrix that are laid out in another one; no array of them all is made for that.

    Attributes:
        structure: of the matrix, which has to stay.
        outputs: [count], the chosen ones.

    Raises:
        IndexError: for outputs that the matrix does not have.
    """

    def __init__(self, structure: CMatrix, outputs: Any) -> None:
        self.structure = structure
        self.outputs: Int[np.ndarray, " count"] = np.ascontiguousarray(as_array(outputs), np.int64)
        if not ((self.outputs >= 0) & (self.outputs < structure.outputs)).all():
            raise IndexError(
                f"the matrix has outputs 0 to {structure.outputs - 1}, asked for"
                f" {self.outputs.min()} to {self.outputs.max()}; ask for some of them"
            )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.outputs), self.structure.inputs

    def floats(self, most: int | None = None) -> Float[np.ndarray, "count inputs"]:
        """The weights of the first ones as they are stored, in float32; None takes all."""
        chosen = self.outputs[:most]
        weights = np.empty((len(chosen), self.structure.inputs), np.float32)
        library().draftwood_read_outputs(
            self.structure, address_of(chosen), len(chosen), address_of(weights), threads()
        )
        return weights


SLAB = 32 * LARGE_PAGE
"""Bytes asked of the system at once; what nobody writes to takes no memory."""


class LargePages:
    """Gives memory part after part. Most matrices are smaller than what systems put into large
    pages by themselves, and from small ones a pass of TinyLlama-1.1B takes a tenth longer: reading
    ahead ends with each page.

    A slab goes back to the system with its last part.
    """

    def __init__(self) -> None:
        self._slab, self._at = np.empty(0, np.uint8), 0

    def take(self, size: int) -> np.ndarray:
        """Hand out so many bytes, from a multiple of ``ALIGNMENT`` on."""
        if self._at + size > len(self._slab):
            self._slab, self._at = _slab(max(size, SLAB)), 0
        found = self._slab[self._at : self._at + size]
        self._at += size + -size % ALIGNMENT
        return found


def _slab(size: int) -> np.ndarray:
    memory = np.empty(size + LARGE_PAGE, np.uint8)
    prefer_large_pages(address_of(memory), memory.nbytes)
    return memory[-address_of(memory) % LARGE_PAGE :][:size]


Allocate = Callable[[int], np.ndarray]
"""Gives so many bytes, from a multiple of ``ALIGNMENT`` on."""

Weights = Any
"""Weights of a linear layer: [outputs inputs] numbers in an array, whose uint16 are the bits of
bfloat16, or in a tensor, or ``Blocks``, or ``Adapted`` ones, or ``Chosen`` ones of a matrix.
"""


@dataclass(frozen=True, eq=False)
class Adapted:
    """A matrix with what an adapter adds to it, which is computed when it is packed.

    Attributes:
        base: as it is stored.
        down: [rank inputs].
        up: [outputs rank]; the product of both is added.
    """

    base: Weights
    down: Float[np.ndarray, "rank inputs"]
    up: Float[np.ndarray, "outputs rank"]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.up), self.down.shape[1]

    def __getitem__(self, outputs: Any) -> "Adapted":
        """Some of the outputs, by their range or their numbers."""
        return Adapted(self.base[outputs], self.down, self.up[outputs])

    def floats(self) -> Float[np.ndarray, "outputs inputs"]:
        """The sum, in float32."""
        base = decoded(self.base) if isinstance(self.base, Blocks) else as_floats(self.base)
        return base + self.up @ self.down


PROBED = 16
"""Outputs that are looked at first: of most weights not one lies on 16 even steps."""


class Matrix:
    """A matrix in the library's layout, with the memory that it lies in.

    Args:
        memory: bytes of the weights and of the scales, as ``sizes`` tells, each beginning at a
            multiple of ``ALIGNMENT``; None takes new ones, which hold nothing yet.
        factor: what the scales of given memory must be multiplied with.
        allocate: gives new memory by its size in bytes.

    Attributes:
        structure: what the library reads.
        memory: see above.
        weight_bytes: of the weights with their scales.
    """

    def __init__(
        self,
        format: str,
        outputs: int,
        inputs: int,
        bias: Any,
        encoding: int,
        memory: Sequence[np.ndarray] | None = None,
        factor: float = 0.0,
        allocate: Allocate = aligned,
    ) -> None:
        self.bias = None if bias is None else np.ascontiguousarray(as_array(bias), np.float32)
        self.structure = CMatrix(
            format=formats()[format],
            outputs=outputs,
            inputs=inputs,
            encoding=encoding,
            factor=factor,
            bias=None if self.bias is None else address_of(self.bias),
        )
        sizes = self.sizes(format, outputs, inputs)
        self.memory = [allocate(size) for size in sizes] if memory is None else list(memory)
        begins = [part.ctypes.data for part in self.memory]
        if any(begin % ALIGNMENT for begin in begins):
            raise ValueError(f"matrices begin at multiples of {ALIGNMENT} bytes")
        if [part.nbytes for part in self.memory] != sizes:
            raise ValueError(f"a matrix in {format} of {outputs} x {inputs} has {sizes} bytes")
        self.structure.weights, self.structure.scales = begins
        self.weight_bytes = sum(sizes)

    @staticmethod
    def sizes(format: str, outputs: int, inputs: int) -> list[int]:
        """Bytes of the weights and of the scales of a matrix in this format."""
        shape, sizes = CMatrix(formats()[format], outputs, inputs), integers([0, 0])
        library().draftwood_matrix_sizes(shape, sizes)
        return list(sizes)

    @property
    def shape(self) -> tuple[int, int]:
        return self.structure.outputs, self.structure.inputs

    @property
    def format(self) -> str:
        """Its name as GGUF files have it."""
        return list(formats())[self.structure.format]

    @classmethod
    def pack(
        cls, weights: Weights, bias: Any, products: str, allocate: Allocate = aligned
    ) -> "Matrix":
        """Lay weights out.

        Args:
            weights: floats, or a file's blocks, whose numbers stay what they are.
            bias: [outputs], or None.
            products: ``int8`` rounds rows to 8 bits, and floats likewise unless they lie on 16 even
                steps; ``int4`` puts floats on 16 even steps; else the type of both.
            allocate: gives the memory.
        """
        if isinstance(weights, Adapted):
            weights = weights.floats()
        if isinstance(weights, Blocks):
            matrix, unfilled = cls.of_blocks(weights, bias, products, allocate)
            fill(unfilled)
            return matrix
        offered, (outputs, inputs) = library(), weights.shape
        some, are_halves = min(outputs, PROBED), False
        if isinstance(weights, Chosen):
            rows = weights.floats(some)
            given: Sequence[Any] = weights.structure, address_of(weights.outputs)
            lay_out = offered.draftwood_pack_outputs
        else:
            are_halves = is_bfloat16(weights)
            rows = np.ascontiguousarray(bits_of(weights) if are_halves else as_floats(weights))
            given, lay_out = (address_of(rows), are_halves), offered.draftwood_pack
        probed = address_of(rows), are_halves, some, inputs

        def packed(format: str) -> tuple[Matrix, bool]:
            encoding = {"BF16": HALVES, "F32": FLOATS, "F16": FLOATS}.get(format, BYTES)
            matrix = cls(format, outputs, inputs, bias, encoding, allocate=allocate)
            return matrix, lay_out(*given, matrix.structure, threads())

        format = FROM_FLOATS[products]
        if format == "Q8_0" and offered.draftwood_fits_int4(*probed, threads()):
            matrix, fits = packed("Q4_1")
            if fits:
                return matrix
        return packed(format)[0]

    @classmethod
    def of_blocks(
        cls, blocks: Blocks, bias: Any, products: str, allocate: Allocate = aligned
    ) -> "tuple[Matrix, list[tuple[Matrix, Blocks]]]":
        """The matrix of a file's blocks, and what ``fill`` has yet to do for it."""
        if blocks.format not in block_formats():
            kept = kept_as(blocks.format, products)
            floats = next(name for name, format in FROM_FLOATS.items() if format == kept)
            return cls.pack(blocks.floats(), bias, floats, allocate), []
        encoding = FLOATS if products == "float32" else BYTES
        factor = library().draftwood_block_factor(formats()[blocks.format])
        shape = blocks.shape
        matrix = cls(blocks.format, *shape, bias, encoding, factor=factor, allocate=allocate)
        return matrix, [(matrix, blocks)]

    def multiply(self, given: Any) -> Any:
        """Rows [rows inputs], in an array or a tensor, times the matrix, and the bias."""
        rows = np.ascontiguousarray(as_array(given), np.float32)
        results = np.empty((len(rows), self.structure.outputs), np.float32)
        library().draftwood_multiply(
            self.structure, address_of(rows), len(rows), address_of(results), threads()
        )
        return like(results, given)

    def outputs(self, chosen: Any) -> Float[np.ndarray, "count inputs"]:
        """The weights of some outputs [count] as they are stored, in float32."""
        return Chosen(self.structure, chosen).floats()

    def floats(self) -> Float[np.ndarray, "outputs inputs"]:
        """All weights as they are stored, in float32."""
        return self.outputs(np.arange(self.structure.outputs))


def decoded(blocks: Blocks) -> Float[np.ndarray, "outputs inputs"]:
    """The numbers of blocks in float32, as the library reads them."""
    return Matrix.pack(blocks, None, "float32").floats()


Fill = Callable[[Sequence[tuple[Matrix, Blocks]]], None]
"""Puts blocks into their matrices."""


def fill(
    matrices: Sequence[tuple[Matrix, Blocks]], meanwhile: Callable[[], object] | None = None
) -> None:
    """Lay blocks out in their matrices, all in one call that releases the GIL.

    Args:
        meanwhile: called beside it.
    """
    kept, stored = list[object](), (CStoredBlocks * len(matrices))()
    for place, (matrix, blocks) in enumerate(matrices):
        rows = blocks.read()
        order = np.ascontiguousarray(blocks.rows(), np.int64)
        grid, signs = _code_books(blocks.format)
        kept += rows, order, grid, signs
        addresses = (rows.ctypes.data, address_of(order), grid.ctypes.data, signs.ctypes.data)
        stored[place] = CStoredBlocks(*addresses, ctypes.pointer(matrix.structure))
    pack = functools.partial(library().draftwood_pack_blocks, stored, len(matrices), threads())
    if meanwhile is None:
        pack()
    else:
        with ThreadPoolExecutor(1) as pool:
            packed = pool.submit(pack)
            meanwhile()
            packed.result()
    for _, blocks in matrices:
        blocks.let_go()


class RowsInPlace:
    """A table of which single rows are read, where they lie in a file or in memory.

    Args:
        table: blocks, or floats in an array or a tensor.

    Attributes:
        pointer: to the structure that the library reads them by.
    """

    def __init__(self, table: Weights) -> None:
        if isinstance(table, Blocks):
            name, rows, inputs = table.format, table.read(), table.inputs
        else:
            rows = np.ascontiguousarray(bits_of(table) if is_bfloat16(table) else as_array(table))
            name, inputs = _OF_FLOATS[rows.dtype.name], rows.shape[1]
        shape = CMatrix(format=formats()[name], outputs=1, inputs=inputs, encoding=FLOATS)
        shape.factor = library().draftwood_block_factor(shape.format)
        self._kept = shape, rows, *_code_books(name)
        begin, grid, signs = (each.ctypes.data for each in self._kept[1:])
        stored = CStoredBlocks(begin, None, grid, signs, ctypes.pointer(shape))
        self.pointer = ctypes.pointer(stored)


_OF_FLOATS = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
_SIGN_BITS = {"IQ2_XXS": 2, "IQ3_XXS": 3}


@functools.cache
def _code_books(format: str) -> tuple[np.ndarray, np.ndarray]:
    """The grid of a format that codes several inputs at once, as indices of its sizes, and signs.

    Both come from the ``gguf`` package. Signs [128 8] are the highest bits of the codes.
    """
    if format not in _SIGN_BITS:
        return np.zeros(1, np.uint8), np.zeros((1, 8), np.uint8)
    from gguf import quants  # takes long

    coded = getattr(quants, format)
    coded.init_grid()
    sizes = np.array(coded.grid_map, dtype=np.float32)
    grid = np.searchsorted(sizes, coded.grid.reshape(-1)).astype(np.uint8)
    signs = np.frombuffer(quants.IQ2_XXS.ksigns, dtype=np.uint8)
    bits = np.unpackbits(signs[:, None], axis=1, bitorder="little")
    return grid, bits << _SIGN_BITS[format]
