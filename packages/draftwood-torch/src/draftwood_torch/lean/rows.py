"""Norms and rotary positions of rows, in as few operations as PyTorch has for them."""

import torch
from torch import Tensor
from torch.nn import functional

from draftwood.models.decoder import Norm, Rotary, Sizes


def normed(rows: Tensor, norm: Norm | None, sizes: Sizes) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), or LayerNorm; without one as is."""
    if norm is None:
        return rows
    shape, is_shared = norm.weight.shape[-1:], norm.weight.dim() == 1
    weight = norm.weight if is_shared else None  # else each head has its own
    if sizes.is_layer_norm:
        rows = functional.layer_norm(rows.float(), shape, weight, eps=sizes.epsilon)
    else:
        rows = functional.rms_norm(rows.float(), shape, weight, sizes.epsilon)
    rows = rows if is_shared else rows * norm.weight
    return rows if norm.bias is None else rows + norm.bias


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) in the first dimensions of each head."""
    dim = cosines.shape[-1]
    turned, rest = heads.split([dim, heads.shape[-1] - dim], dim=-1)
    first, second = turned.chunk(2, dim=-1)
    swapped = torch.cat([second, first], dim=-1)
    turned = torch.addcmul(turned * cosines[:, None], swapped, sines[:, None])
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def rotations_at(rotary: Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Factors [rows 2*pairs] of a rotary embedding at these positions [rows].

    The first are cosines, of a head's own halves; the second sines, of its halves swapped.
    """
    angles = positions[:, None] * rotary.frequencies
    cosines, sines = angles.cos() * rotary.scale, angles.sin() * rotary.scale
    return torch.cat([cosines, cosines], dim=-1), torch.cat([-sines, sines], dim=-1)
