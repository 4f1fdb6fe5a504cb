"""Read the header of a safetensors file without its numbers, map its arrays, and write some."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {
    "float32": "F32",
    "float16": "F16",
    "uint16": "BF16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
}
"""Names of NumPy's types in such a file; arrays of uint16 are the bits of bfloat16."""
STORED = {stored: name for name, stored in TYPES.items()} | {"F64": "float64"}
"""NumPy's types of what is read."""


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays by name; those of the largest entries come first, so that all are aligned.

    Args:
        arrays: of the ``TYPES``.
        metadata: texts beside them; PyTorch's mark where left out, which Transformers asks for.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    end = 0
    for name in names:
        begin, end, each = end, end + arrays[name].nbytes, arrays[name]
        place = {"shape": list(each.shape), "data_offsets": [begin, end]}
        header[name] = {"dtype": TYPES[each.dtype.name], **place}
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    with path.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for name in names:
            file.write(np.ascontiguousarray(arrays[name]).data)


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a file by name; those of bfloat16 are the bits of it, in uint16.

    Arrays of other types than ``STORED`` are bytes.

    Raises:
        ValueError: as ``read_header``.
        MemoryError: as ``map_file``.
    """
    header, content = _whole_header(path), _mapped(path)
    numbers = content[header.begin :]
    return {name: _placed(numbers, each) for name, each in header.tensors.items()}


def map_file(path: Path) -> np.ndarray:
    """Map the bytes of a file, which has some.

    Raises:
        MemoryError: where there is no memory for it.
        OSError: where it cannot be read, or its file system maps nothing.
    """
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(
            f"there is no memory to map {path}; end other programs, raise the memory limit or take"
            " a smaller model"
        ) from error


def _mapped(path: Path) -> np.ndarray:
    try:
        return map_file(path)
    except OSError:  # some file systems map nothing
        return np.fromfile(path, dtype=np.uint8)


def _placed(content: np.ndarray, told: dict[str, Any]) -> np.ndarray:
    first, end = told["data_offsets"]
    stored = np.asarray(content[first:end])
    if told["dtype"] not in STORED:
        return stored
    array = stored.view(STORED[told["dtype"]]).reshape(told["shape"])
    return array if array.flags.aligned else array.copy()


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Read type, shape and place of each tensor in a file, by name.

    Raises:
        ValueError: for a file of another form or a truncated one; only lengths are compared.
    """
    return _whole_header(path).tensors


@dataclass(frozen=True)
class _Header:
    """Header of a file.

    Attributes:
        tensors: type, shape and place of each, by name.
        begin: bytes before the numbers.
        size: bytes of the file, by what it promises.
    """

    tensors: dict[str, dict[str, Any]]
    begin: int
    size: int


def _whole_header(path: Path) -> _Header:
    size = path.stat().st_size
    try:
        header = _header(path)
        if header.size != size:
            raise ValueError(f"{size} bytes came, {header.size} were promised")
    except _UNREADABLE as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); copy it, or fetch the file again"
        ) from None
    return header


def is_cut_short(path: Path) -> bool:
    """True if there is less of a file than it promises; False where it promises nothing."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if int.from_bytes(file.read(8), "little") > size - 8:
            return True
    try:
        return size < _header(path).size
    except _UNREADABLE:
        return False


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


def _header(path: Path) -> _Header:
    """Read the header; the file may be shorter than it promises."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= path.stat().st_size - 8:
            raise ValueError("the header is longer than the file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, each in header.items():
        _require_tensor(name, each)
    end = max((each["data_offsets"][1] for each in header.values()), default=0)
    return _Header(header, 8 + length, 8 + length + end)


def _require_tensor(name: str, told: Any) -> None:
    """Raise ValueError unless a header gives a type, a shape and a place of a tensor."""
    numbers = [*told["shape"], *told["data_offsets"]]
    whole = all(isinstance(each, int) and each >= 0 for each in numbers)
    if not (whole and isinstance(told["dtype"], str) and len(told["data_offsets"]) == 2):
        raise ValueError(f"its header does not tell what {name} is")
    first, end = told["data_offsets"]
    kind = STORED.get(told["dtype"])
    if kind is not None and prod(told["shape"]) * np.dtype(kind).itemsize != end - first:
        raise ValueError(f"the shape of {name} does not fit its bytes")
