"""The crossing from NumPy to PyTorch: tokens and masks of trees become tensors of a model."""

import numpy as np
import torch
from torch import Tensor


def as_tensor(array: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """An array as a tensor, which shares its memory on the host."""
    made = torch.from_numpy(array)
    return made if device == "cpu" else made.to(device, non_blocking=True)
