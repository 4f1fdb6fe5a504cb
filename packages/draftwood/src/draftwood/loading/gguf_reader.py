"""The content of a GGUF file: settings of its model, and where its tensors lie.

Everything here is read by the ``gguf`` package, which takes a while to import: who only looks for
what was made of a file before needs none of it.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import ReaderTensor

from draftwood.arrays import Float
from draftwood.loading.gguf_metadata import FACTORS, UnknownArchitectureError, read_metadata
from draftwood.loading.gguf_names import Layout, as_stored
from draftwood.loading.gguf_settings import configuration
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.shapes import Shape, require_none, require_shape, tensor_shapes
from draftwood.tokenizer.gguf_vocabulary import MOST

FLOATS = ("F64", "F32", "F16", "BF16")
WITH_ONES = (
    *("conv1d.weight", ".conv.weight", "shared_expert_gate.weight"),
    *("moe_statics.e_score_correction_bias", "mamba.A_log", "mamba.D"),
)
IN_GROUPS = "mamba.norm.weight"
"""End of the name of a norm that files have group by group."""
MOST_AXES = 4  # of llama.cpp's tensors


@dataclass(eq=False)
class Content:
    """Header of a file: all that it says before its numbers.

    Attributes:
        readers: of its parts.
        architecture: llama.cpp's name.
        config: settings of Transformers.
    """

    readers: list[gguf.GGUFReader]
    architecture: str
    config: dict[str, Any]

    @cached_property
    def as_stored(self) -> dict[str, Any]:
        """Settings by which a native model's tensors are those of the file."""
        return as_stored(self.architecture, {tensor.name for _, tensor in self.tensors})

    @cached_property
    def native(self) -> ModelConfiguration:
        """The configuration of a model of a native family, whose tensors are those of the file.

        Raises:
            UnknownConfigurationError: for another one; the message says why.
        """
        return ModelConfiguration(self.config | self.as_stored)

    @cached_property
    def layout(self) -> Layout:
        """Names and layouts of its tensors, of a native family alone."""
        return Layout.of(self.architecture, self.native)

    @property
    def tensors(self) -> Iterator[tuple[int, ReaderTensor]]:
        """All tensors that are no settings, with the number of their part."""
        for part, reader in enumerate(self.readers):
            for tensor in reader.tensors:
                if tensor.name not in FACTORS:
                    yield part, tensor

    @property
    def numbers(self) -> int:
        """Count of the numbers in all tensors."""
        return sum(int(tensor.n_elements) for _, tensor in self.tensors)

    @property
    def quantisation(self) -> str | None:
        """Type that most weights are stored in, for instance Q4_K; None for floats."""
        sizes = Counter[str]()
        for reader in self.readers:
            for tensor in reader.tensors:
                sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        most = max(sizes, key=lambda name: sizes[name])
        return None if most in FLOATS else most


class PlacedTensor(NamedTuple):
    """A tensor of a file, its name in the model, and the number of its part.

    Where the file joins two of each expert's matrices, also which of the two it is.
    """

    name: str
    stored: ReaderTensor
    part: int
    half: int | None = None

    def floats(self, layout: Layout) -> Float[np.ndarray, "..."]:
        """Read its numbers, as ``floats`` does."""
        values = floats(self.stored, layout)
        if self.half is None:
            return values
        return layout.half(values, self.half)


def read_content(parts: Sequence[Path]) -> Content:
    """Read the settings of a file's parts.

    Raises:
        ValueError: for what is not understood; damaged bytes raise whatever the parser does.
    """
    readers = opened(parts)
    metadata = read_metadata(readers, parts[0])
    return Content(readers, metadata.architecture, configuration(metadata))


def opened(parts: Sequence[Path]) -> list[gguf.GGUFReader]:
    """Read the headers of a file's parts. Raises ValueError where a part is missing."""
    readers: list[gguf.GGUFReader] = [QuickReader(part) for part in parts]
    told = readers[0].get_field("split.count")
    count = 1 if told is None else int(told.contents()) or 1
    if count != len(parts):
        raise ValueError(
            f"it is one of {count} parts and is not named so; give all parts the names they came"
            " with"
        )
    return readers


def placed(content: Content) -> list[PlacedTensor]:
    """Name the tensors of a file as a model of a native family does.

    Raises:
        ValueError: for tensors that the model does not have, of other shapes than its
            configuration asks for, and where some are missing.
    """
    shapes, found = tensor_shapes(content.native), list[PlacedTensor]()
    for part, tensor in content.tensors:
        own = content.layout.separate(tensor.name)
        for half, stored_name in enumerate(own):
            name = content.layout.name_of(stored_name)
            is_behind = content.layout.is_behind(stored_name)
            if is_behind and name is None:  # what the layer lacks is missed where it is asked for
                continue
            if name is None or (not is_behind and name not in shapes):
                kind = content.native.architecture
                raise UnknownArchitectureError(f"its tensor {tensor.name} has no place in {kind}")
            if not is_behind:
                wanted = _stored_shape(name, shapes[name], len(own))
                found_shape = _squeezed(name, shape_of(tensor))
                require_shape(tensor.name, found_shape, wanted)
            found.append(PlacedTensor(name, tensor, part, half if len(own) > 1 else None))
    names = {each.name for each in found}
    require_none([name for name in shapes if name not in names])
    return found


def _stored_shape(name: str, shape: Shape, joined: int) -> Shape:
    """The shape that a file has of a tensor, which may be one of several that it joins."""
    shape, axis = _squeezed(name, shape), len(shape) - 2
    if joined == 1:
        return shape
    return (*shape[:axis], joined * shape[axis], *shape[axis + 1 :])


def _squeezed(name: str, shape: Shape) -> Shape:
    """A shape without axes of one entry, which files have or have not in some tensors, and without
    groups.
    """
    if name.endswith(IN_GROUPS):
        return (prod(shape),)
    return tuple(size for size in shape if size != 1) if name.endswith(WITH_ONES) else shape


def shape_of(tensor: ReaderTensor) -> Shape:
    """Give the shape of a tensor with its outputs first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def floats(tensor: ReaderTensor, layout: Layout) -> Float[np.ndarray, "..."]:
    """Read the numbers of a tensor as the model has them, in float32, but for the order of heads of
    values.
    """
    values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
    return np.array(layout.laid_out(tensor.name, values))


class QuickReader(gguf.GGUFReader):
    """Reader that skips lists of strings: a vocabulary takes seconds, and tokenizers read it again.

    Lists of numbers, which vocabularies have as well, are read at once. Bounds are checked before
    memory is taken for what they enclose.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"its header goes to byte {end} of {len(self.data)}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list, list]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        at, kind = orig_offs + 12, gguf.GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        if count > MOST:
            raise ValueError(f"a list has {count} entries")
        types = [gguf.GGUFValueType.ARRAY, kind]
        if (number := self.gguf_scalar_to_np.get(kind)) is not None:
            numbers = np.asarray(self._get(at, number, count))
            return 12 + numbers.nbytes, [numbers], [0], types
        if kind != gguf.GGUFValueType.STRING:
            raise ValueError("a list holds lists")
        content: Any = self.data
        return _end_of_texts(memoryview(content), at, count) - orig_offs, [], [], types

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        for field in fields:
            _require_inside(field, int(start_offs), len(self.data))
        super()._build_tensors(start_offs, fields)


def _end_of_texts(content: memoryview, at: int, count: int) -> int:
    """The byte behind so many texts. Raises ValueError where the file ends before."""
    try:
        for _ in range(count):
            at += 8 + struct.unpack_from("<Q", content, at)[0]
    except struct.error:
        at = len(content) + 1
    if at > len(content):
        raise ValueError("a list of texts goes beyond the end of the file")
    return at


def _require_inside(field: gguf.ReaderField, start: int, size: int) -> None:
    """Raise ValueError for a tensor with more axes than there are, or beyond the end of its file.

    Args:
        start: of all tensors, in bytes.
        size: of the file.
    """
    _, _, rank, *parts = field.parts
    if int(rank[0]) > MOST_AXES:
        raise ValueError(f"its tensor {field.name} has {rank[0]} axes")
    dimensions, (kind,), (offset,) = (part.tolist() for part in parts)
    inputs, block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    end = start + offset + prod(dimensions) * block // inputs
    if end > size:
        raise ValueError(f"its tensor {field.name} goes to byte {end} of {size}")
