"""Linear layers of PyTorch; rows come in any type, and go in that of the weights."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from draftwood.models.decoder import Projection

LEAST_ROWS = 4
"""oneDNN multiplies four rows faster than one, two or three."""

TYPICAL_ROWS = 64  # a hint to oneDNN's choice of layout; 5 % faster than 8 even for small trees

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda rows: functional.relu(rows).square(),
}
"""Activations of MLPs, by their names in ``models.decoder.ACTIVATIONS``."""

Network = Callable[[Float[Tensor, "rows inputs"]], Float[Tensor, "rows outputs"]]
ToLinear = Callable[[Projection], Network]
"""Makes a linear layer of its weights."""


def to_linear(prepacked: bool) -> ToLinear:
    """The kind of linear layer that is fastest."""
    return Prepacked if prepacked else Linear


class Linear:
    """PyTorch's own linear layer."""

    def __init__(self, part: Projection) -> None:
        self.weight, self.bias = part.floats, bias_of(part)

    def __call__(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return functional.linear(rows.to(self.weight.dtype), self.weight, self.bias)


class Prepacked:
    """oneDNN with weights laid out once in the order in which the CPU reads them.

    PyTorch's own linear layer lays bfloat16 weights out again for every call, which for few rows
    costs more than the product.
    """

    def __init__(self, part: Projection) -> None:
        self.dtype, self.bias = part.floats.dtype, bias_of(part)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(part.floats, TYPICAL_ROWS)
        self.run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return self.run(rows.to(self.dtype), self.weight, self.bias, "none", [], "")


def bias_of(part: Projection) -> Float[Tensor, " outputs"] | None:
    """The bias in the type of the weights."""
    return None if part.bias is None else part.bias.to(part.floats.dtype)


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """True where oneDNN multiplies weights of this type on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    supported = {
        torch.float32: lambda: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype in supported and supported[dtype]()


def joined(parts: Sequence[Projection]) -> Projection:
    """Several layers over the same inputs as one; their outputs are side by side."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Projection(
        torch.cat([part.floats for part in parts]), torch.cat(biases) if biases else None
    )
