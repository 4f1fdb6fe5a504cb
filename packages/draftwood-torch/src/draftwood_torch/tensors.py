"""The crossing from NumPy to PyTorch: tokens and masks of trees become tensors of a model."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(array: Any, device: torch.device | str = "cpu") -> Tensor:
    """An array as a tensor, which shares its memory on the host; others come back as they are.

    An array that cannot be written to, of a mapped file for instance, is copied.
    """
    if not isinstance(array, np.ndarray):
        return array
    made = torch.from_numpy(array if array.flags.writeable else array.copy())
    return made if device == "cpu" else made.to(device, non_blocking=True)


def below(first: Tensor, second: Tensor) -> Tensor:
    """Join rows of tensors."""
    return torch.cat([first, second])
