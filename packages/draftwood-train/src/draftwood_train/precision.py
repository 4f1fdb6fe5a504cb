"""Choose the numbers that PyTorch multiplies fast here."""

from typing import Literal

import torch


def cpu_has_bfloat16() -> bool:
    """True where the CPU's instructions carry products in bfloat16.

    Elsewhere PyTorch makes them number by number: with AVX2 alone they take twenty times as long as
    in float32.
    """
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fast_products() -> torch.autocast:
    """Return a context in which products on the CPU run in bfloat16, where it has that."""
    return torch.autocast("cpu", torch.bfloat16, enabled=cpu_has_bfloat16())


def fast_precision() -> Literal["bfloat16", "float32"]:
    """Return bfloat16 on a GPU and on a CPU that has it, else float32."""
    return "bfloat16" if torch.cuda.is_available() or cpu_has_bfloat16() else "float32"
