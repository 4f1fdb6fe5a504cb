"""Linear layers for few rows at a time: plain, prepacked for the CPU, and in 8-bit integers.

A product has three acts: rows are encoded as the product wants them, multiplied, and what comes out is decoded to
float32. The acts before and after are plain tensor functions, so that they can be fused with what stands beside them;
the product itself is a kernel of PyTorch or oneDNN, nothing here multiplies a matrix.
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

Kind = Literal["plain", "packed", "int8"]

LEAST_ROWS = 4
"""oneDNN multiplies four rows faster than one, two or three."""

_MIDDLE = 128  # unsigned activations around this zero point are what AVX-512 VNNI multiplies fastest
_TYPICAL_ROWS = 64  # a hint to oneDNN's choice of layout; 5 % faster than 8 even for small trees


def encode(
    kind: Kind, dtype: torch.dtype, rows: Float[Tensor, "rows inputs"]
) -> tuple[Num[Tensor, "rows inputs"], Float[Tensor, "rows one"]]:
    """Rows as a product of this kind wants them, and the scale that its result must be decoded with.

    In 8-bit integers every row is counted in 127ths of its own largest value, so nothing depends on other rows.
    """
    if kind != "int8":
        return rows.to(dtype), rows[:, :1]
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (rows / scale + (_MIDDLE + 0.5)).to(torch.uint8), scale  # the conversion cuts off what is behind the point


def decode(
    kind: Kind, products: Float[Tensor, "rows outputs"], scale: Float[Tensor, "rows one"], bias: Tensor
) -> Float[Tensor, "rows outputs"]:
    """What the product of encoded rows means, in float32; ``bias`` counts for 8-bit products alone."""
    return products * scale + bias if kind == "int8" else products.float()


@runtime_checkable
class Linear(Protocol):
    """Multiplies encoded rows. ``bias`` is what ``decode`` adds."""

    bias: Tensor

    def __call__(self, encoded: Num[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]: ...


class Plain:
    """PyTorch's own, on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self._bias = weight, bias
        self.bias = weight.new_zeros(len(weight))

    def __call__(self, encoded: Num[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return functional.linear(encoded, self.weight, self._bias)


class Packed:
    """oneDNN with weights laid out once in the order in which the CPU reads them.

    PyTorch's own linear lays bfloat16 weights out anew for every call, which for few rows costs more than the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = weight.new_zeros(len(weight))
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = bias
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, encoded: Num[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return self._run(encoded, self.weight, self._bias, "none", [], "")


class Int8:
    """8-bit weights with one scale per output. Products of 8-bit integers add up without rounding."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float()
        self.scales = weight.abs().amax(-1).clamp(min=1e-12) / 127
        quantised = (weight / self.scales[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(quantised, None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = torch.zeros(len(weight)) if bias is None else bias.float()
        self._run = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, encoded: Num[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return self._run(
            encoded, 1.0, _MIDDLE, self.weight, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )


_KINDS: dict[Kind, type[Plain] | type[Packed] | type[Int8]] = {"plain": Plain, "packed": Packed, "int8": Int8}


def linear(kind: Kind, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Linear:
    """Several linear layers over the same rows as one; their outputs stand side by side.

    Args:
        kind: how to multiply; see ``best_kind`` and ``require_int8`` for what a device and a type allow.
        weights: each [outputs inputs].
        biases: one per weight, all or none of them None.
    """
    given = [bias.detach() for bias in biases if bias is not None]
    weight = weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])
    return _KINDS[kind](weight, torch.cat(given) if given else None)


def best_kind(device: torch.device, dtype: torch.dtype) -> Kind:
    """The fastest exact kind for this device and type."""
    supported = {
        torch.float32: torch.backends.mkldnn.is_available,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    usable = device.type == "cpu" and torch.backends.mkldnn.is_available() and dtype in supported
    return "packed" if usable and supported[dtype]() else "plain"


def has_int8(device: torch.device) -> bool:
    """Whether this device multiplies 8-bit integers exactly and fast."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()


def require_int8(device: torch.device) -> None:
    """Raise ValueError unless ``has_int8``, saying what is missing."""
    if device.type != "cpu":
        raise ValueError(f"int8 runs on CPUs only, not on {device.type}; leave dtype out, or take bfloat16")
    if not has_int8(device):
        raise ValueError(
            "int8 needs a CPU with 8-bit dot products (AVX-512 VNNI) and PyTorch with oneDNN; take bfloat16 or float32"
        )
