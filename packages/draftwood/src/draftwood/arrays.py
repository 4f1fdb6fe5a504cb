"""The crossing from PyTorch to NumPy: rows of models become arrays here, and nowhere else.

PyTorch is never imported: where a tensor is given, it is there. Neither is jaxtyping, which takes
as long as NumPy: its names say shapes where something that checks them has imported it before.
"""

import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Float32, Float64, Int, Shaped, UInt8, UInt16, UInt32
else:

    class Shaped:
        """An array of any type and shape."""

        def __class_getitem__(cls, shape: Any) -> type:
            return cls

    Bool = Float = Float32 = Float64 = Int = UInt8 = UInt16 = UInt32 = Shaped

FloatType = Literal["float32", "bfloat16", "float16"]
"""Types of weights and states, by the names that PyTorch and safetensors share."""


def as_array(rows: Any) -> Any:
    """Rows as a NumPy array on the host; a tensor in memory of floats is not copied.

    Rows in 16 bits and rows of a device become float32, or stay float64 or whole numbers. What is
    no tensor comes back as it is, so that rows may be run when they are read.
    """
    if isinstance(rows, np.ndarray) or not hasattr(rows, "detach"):
        return rows
    held = rows.detach()
    if held.is_floating_point() and held.element_size() < 4:
        held = held.float()
    return held.cpu().numpy()


def like(rows: np.ndarray, given: Any) -> Any:
    """Rows as whoever asked computes: arrays for arrays, tensors for tensors."""
    if isinstance(given, np.ndarray):
        return rows
    return sys.modules["torch"].from_numpy(rows)


def below(first: Any, second: Any) -> Any:
    """Join rows of one model, in arrays or in tensors."""
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    return sys.modules["torch"].cat([first, second])


def address_of(array: np.ndarray) -> int:
    """Address of an array's first entry; a third of the time that ``array.ctypes.data`` takes."""
    return array.__array_interface__["data"][0]


def to_bfloat16(numbers: Float[np.ndarray, "..."]) -> UInt16[np.ndarray, "..."]:
    """Round float32 to the nearest bfloat16, to even where two are as near; gives their bits."""
    return (_rounded_bits(numbers) >> 16).astype(np.uint16)


def is_bfloat16(rows: Any) -> bool:
    """True for a tensor of bfloat16, and for an array of its bits."""
    return str(rows.dtype) in ("torch.bfloat16", "uint16")


def bits_of(rows: Any) -> UInt16[np.ndarray, "..."]:
    """Give the bits of bfloat16 of an array or a tensor; what is of that type is not copied."""
    if not is_bfloat16(rows):
        return to_bfloat16(as_array(rows))
    if isinstance(rows, np.ndarray):
        return rows
    return rows.detach().contiguous().view(sys.modules["torch"].uint16).numpy()


def from_bfloat16(bits: UInt16[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Give the numbers in float32 that these bits of bfloat16 stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def as_floats(numbers: Any) -> Float[np.ndarray, "..."]:
    """Give an array, the bits of bfloat16 or a tensor as float32."""
    array = as_array(numbers)
    return (
        from_bfloat16(array) if array.dtype == np.uint16 else array.astype(np.float32, copy=False)
    )


def rounded(numbers: Float[np.ndarray, "..."], dtype: FloatType) -> Float[np.ndarray, "..."]:
    """Round float32 to what a type holds; they stay in float32."""
    if dtype == "float32":
        return numbers
    if dtype == "float16":
        return numbers.astype(np.float16).astype(np.float32)
    return _rounded_bits(numbers).view(np.float32)


def _rounded_bits(numbers: Float[np.ndarray, "..."]) -> UInt32[np.ndarray, "..."]:
    """Round the bits of float32 to their upper half, as bfloat16 has them."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    found = (bits >> 16) & 1
    found += 0x7FFF
    found += bits
    found &= 0xFFFF0000
    if (nan := np.isnan(numbers)).any():
        found[nan] = 0x7FC00000
    return found


ALIGNMENT = 64
"""Bytes of a line of the caches; weights, scales and blocks begin at one."""


def aligned(size: int) -> UInt8[np.ndarray, " size"]:
    """Allocate ``size`` bytes that begin at a cache line."""
    part = np.empty(size + ALIGNMENT, np.uint8)
    begin = -address_of(part) % ALIGNMENT
    return part[begin:][:size]  # an empty slice of its own would begin elsewhere
