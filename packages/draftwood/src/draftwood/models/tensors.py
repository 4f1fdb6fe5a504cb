"""The crossing from NumPy to PyTorch: tokens and masks of trees become tensors of a model."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from draftwood.models.parts import SequenceInput


def as_tensor(array: Any, device: torch.device | str = "cpu") -> Tensor:
    """An array as a tensor, which shares its memory on the host; others come back as they are."""
    if not isinstance(array, np.ndarray):
        return array
    made = torch.from_numpy(array)
    return made if device == "cpu" else made.to(device, non_blocking=True)


def bfloat16_bits(numbers: Tensor) -> np.ndarray:
    """The bits of a tensor of bfloat16 on the host, as 16-bit integers in the same memory."""
    return numbers.detach().contiguous().view(torch.uint16).numpy()


def below(first: Tensor, second: Tensor) -> Tensor:
    """Join rows of tensors."""
    return torch.cat([first, second])


class TensorInput(SequenceInput[Tensor]):
    """One sequence's share of a forward pass, in tensors on the host."""

    @classmethod
    def of(cls, part: SequenceInput[Any]) -> "TensorInput":
        """The same share, whose arrays are not copied."""
        if isinstance(part, TensorInput):
            return part
        given: dict[str, Any] = {each.name: getattr(part, each.name) for each in fields(part)}
        arrays = ("tokens", "positions", "sees", "tree_positions")
        given |= {name: as_tensor(given[name]) for name in arrays}
        return cls(**given)

    def within(self, window: int | None) -> Bool[Tensor, "nodes width"]:
        """Mask of the cache for each node if attention reaches back ``window`` positions.

        The node's own position is one of them.
        """
        sees = functional.pad(self.sees, (self.before, 0), value=True)
        sees[:, self.unread.start : self.unread.stop] = False
        if window is None:
            return sees
        before = torch.arange(self.before, device=self.positions.device)
        return sees & (
            torch.cat([before, self.tree_positions])[None] > self.positions[:, None] - window
        )

    def padded(self, rows: int) -> "TensorInput":
        """The same with so many copies of the last row after it, which nothing sees."""
        tokens, positions, tree_positions = (
            torch.cat([values, values[-1:].expand(rows)])
            for values in (self.tokens, self.positions, self.tree_positions)
        )
        sees = functional.pad(torch.cat([self.sees, self.sees[-1:].expand(rows, -1)]), (0, rows))
        place = replace(self.place, count=self.place.count + rows)
        stream = self.stream
        if stream is not None:
            stream = torch.cat([stream, stream[-1:].expand(rows, -1)])
        return replace(
            self,
            stream=stream,
            tokens=tokens,
            positions=positions,
            place=place,
            sees=sees,
            tree_positions=tree_positions,
        )
