"""The content of a GGUF file: settings of its model, and where its tensors lie.

Everything here is read by the ``gguf`` package, which takes a while to import: who only looks for
what was made of a file before needs none of it.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import ReaderTensor
from jaxtyping import Float

from draftwood.loading.gguf_metadata import FACTORS, read_metadata
from draftwood.loading.gguf_names import Layout
from draftwood.loading.gguf_settings import configuration
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.shapes import Shape, require_none, require_shape, tensor_shapes

FLOATS = ("F64", "F32", "F16", "BF16")


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
    def native(self) -> ModelConfiguration:
        """The configuration of a model of a native family.

        Raises:
            UnknownConfigurationError: for another one; the message says why.
        """
        return ModelConfiguration(self.config)

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
    def quantisation(self) -> str | None:
        """Type that most weights are stored in, for instance Q4_K; None for floats."""
        sizes = Counter[str]()
        for reader in self.readers:
            for tensor in reader.tensors:
                sizes[tensor.tensor_type.name] += int(tensor.n_elements)
        most = max(sizes, key=lambda name: sizes[name])
        return None if most in FLOATS else most


class PlacedTensor(NamedTuple):
    """A tensor of a file, its name in the model, and the number of its part."""

    name: str
    stored: ReaderTensor
    part: int


def read_content(parts: Sequence[Path]) -> Content:
    """Read the settings of a file's parts.

    Raises:
        ValueError: for what is not understood; damaged bytes raise whatever the parser does.
    """
    readers = opened(parts)
    metadata = read_metadata(readers)
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
        name = content.layout.name_of(tensor.name)
        if name is None or name not in shapes:
            kind = content.native.architecture
            raise ValueError(f"its tensor {tensor.name} has no place in {kind}")
        require_shape(tensor.name, shape_of(tensor), shapes[name])
        found.append(PlacedTensor(name, tensor, part))
    names = {each.name for each in found}
    require_none([name for name in shapes if name not in names])
    return found


def shape_of(tensor: ReaderTensor) -> Shape:
    """Give the shape of a tensor with its outputs first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def floats(tensor: ReaderTensor, layout: Layout) -> Float[np.ndarray, "..."]:
    """Read the numbers of a tensor as the model has them, in float32."""
    values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
    return np.array(layout.laid_out(tensor.name, values))


class QuickReader(gguf.GGUFReader):
    """Reader that skips lists of strings: a vocabulary takes seconds, and tokenizers read it again.

    Lists of numbers, which vocabularies have as well, are read at once.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list, list]:
        if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        content = memoryview(self.data)  # type: ignore[arg-type]
        kind, count = struct.unpack_from("<IQ", content, orig_offs)
        at, number = orig_offs + 12, self.gguf_scalar_to_np.get(gguf.GGUFValueType(kind))
        if number is not None:
            numbers = np.asarray(self._get(at, number, count))
            if len(numbers) != count:
                raise ValueError("a list of numbers goes beyond its end")
            types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]
            return 12 + numbers.nbytes, [*numbers[:, None]], [*range(count)], types
        if kind != gguf.GGUFValueType.STRING:
            return super()._get_field_parts(orig_offs, raw_type)
        for _ in range(count):
            at += 8 + struct.unpack_from("<Q", content, at)[0]
        if at > len(content):
            raise ValueError("a list of strings goes beyond its end")
        return at - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]
