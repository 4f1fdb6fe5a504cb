"""One sequence's part in a forward pass of PyTorch."""

from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from draftwood.models.parts import SequenceInput
from draftwood_torch.tensors import as_tensor


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
        if part.embeddings is not None:
            given["embeddings"] = as_tensor(part.embeddings)
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
        stream, embeddings = (
            None if each is None else torch.cat([each, each[-1:].expand(rows, -1)])
            for each in (self.stream, self.embeddings)
        )
        return replace(
            self,
            stream=stream,
            embeddings=embeddings,
            tokens=tokens,
            positions=positions,
            place=place,
            sees=sees,
            tree_positions=tree_positions,
        )
