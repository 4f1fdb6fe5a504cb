"""The base of recurrences: what a node keeps, and whom it goes on from."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

PIECE = 64
"""Rows of a text that are scanned at once; the work of a row grows with them."""


@dataclass(frozen=True, eq=False)
class Ancestry:
    """Whom the rows of a scan go on from.

    Before them are as many rows as a convolution looks back; the state has these already.

    Attributes:
        reach: entry (i, j) says that row j is row i or one of its ancestors.
        recent: of each row itself and its nearest ancestors, the places among all rows.
        new: so many of the last rows want outputs.
    """

    reach: Bool[Tensor, "batch rows rows"]
    recent: Int[Tensor, "batch rows kernel"]
    new: int

    @classmethod
    def of(
        cls, reach: Bool[Tensor, "batch rows rows"], before: int, new: int, device: torch.device
    ) -> "Ancestry":
        """Make it for rows of which each, but padding, goes on from all ``before`` rows ahead.

        Padding reaches no more than itself; it comes first or last.
        """
        seen = functional.pad(reach, (before, 0), value=True)
        places = torch.arange(seen.shape[-1], device=reach.device).where(seen, -1)
        recent = places.topk(before + 1, dim=-1).values.clamp(min=0)
        return cls(reach.to(device, non_blocking=True), recent.to(device, non_blocking=True), new)

    def sums(self, steps: Float[Tensor, "batch rows heads"]) -> Float[Tensor, "batch heads rows"]:
        """Sums of a row's step and those of its ancestors."""
        return (self.reach.to(steps.dtype) @ steps).transpose(1, 2)

    def decays(
        self, sums: Float[Tensor, "batch heads rows"], rows: int
    ) -> Float[Tensor, "batch heads some rows"]:
        """Share of an ancestor's input that is left at each of the last ``rows``; 0 for others.

        Args:
            sums: of the logarithms of decays.
        """
        between = sums[:, :, sums.shape[2] - rows :, None] - sums[:, :, None]
        strange = ~self.reach[:, None, self.reach.shape[1] - rows :]
        return between.masked_fill(strange, float("-inf")).exp()


@lru_cache(maxsize=64)
def chain(rows: int, before: int, device: torch.device) -> Ancestry:
    """The ancestry of a text without branches."""
    return Ancestry.of(torch.ones(1, rows, rows, dtype=torch.bool).tril(), before, rows, device)


@runtime_checkable
class Scans(Protocol):
    """The cache of a pass that goes through recurrences."""

    @property
    def in_prompt(self) -> bool:
        """True if the rows are tokens of a prompt, not nodes of a tree."""
        ...

    def scan(
        self, recurrence: "Recurrence", rows: Float[Tensor, "batch new width"]
    ) -> Float[Tensor, "batch new outputs"]:
        """Run the recurrence over new rows, which are kept."""
        ...


class Recurrence(nn.Module, ABC):
    """A layer of Transformers with a running state, run over trees.

    Nothing that the nodes change is kept: they keep what they fed to the recurrence, and a new
    state is made of the rows of the path that was taken (Wu et al. 2025, arXiv:2505.14969).

    Args:
        mixer: the layer, whose weights and norms these are.
        number: of the recurrence in its model.

    Attributes:
        title: what it is called.
        width: numbers that a row keeps.
        kernel: rows that the convolution reads.
    """

    title: ClassVar[str]
    width: int
    kernel: int

    def __init__(self, mixer: nn.Module, number: int) -> None:
        super().__init__()
        self.mixer: Any = mixer
        self.number = number

    def forward(
        self,
        hidden_states: Float[Tensor, "batch new hidden"],
        cache_params: Scans | None = None,
        past_key_values: Scans | None = None,
        **kwargs: object,
    ) -> Float[Tensor, "batch new hidden"]:
        """As the layer is called by Transformers; masks say nothing that the cache does not."""
        cache = past_key_values if cache_params is None else cache_params
        assert cache is not None
        rows, gate = self.read(hidden_states, cache.in_prompt)
        return self.write(cache.scan(self, rows), gate)

    @abstractmethod
    def start(self) -> Tensor:
        """The state [1 ...] before the first token."""

    @abstractmethod
    def read(self, hidden: Tensor, in_prompt: bool) -> tuple[Tensor, Tensor]:
        """Project rows to what they keep [batch new width], and what gates their outputs."""

    @abstractmethod
    def scan(
        self, state: Tensor, rows: Float[Tensor, "batch all width"], ancestry: Ancestry
    ) -> tuple[Float[Tensor, "batch new outputs"], Callable[[], Tensor]]:
        """Scan the new rows; give the outputs, and what gives the state after the last if asked.

        Args:
            state: before the rows of the ancestry [batch ...].
            rows: these and, ahead of them, those that a convolution looks back at.
        """

    @abstractmethod
    def write(self, outputs: Tensor, gate: Tensor) -> Tensor:
        """Make what the layer adds to the stream of the scan's outputs."""

    def through(
        self, state: Tensor, rows: Float[Tensor, "1 all width"], count: int
    ) -> tuple[Float[Tensor, "1 rows outputs"], Tensor]:
        """Scan the rows of a text; give the outputs, and the state after the first ``count``."""
        before, length = self.kernel - 1, rows.shape[1]
        outputs, end = [], before
        while end < length:
            start, is_left = end, end - before >= count
            end = length if is_left else min(start + PIECE, before + count)
            ancestry = chain(end - start, before, rows.device)
            given, after = self.scan(state, rows[:, start - before : end], ancestry)
            outputs.append(given)
            state = state if is_left else after()
        return torch.cat(outputs, dim=1), state


def convolved(
    conv: nn.Conv1d, rows: Float[Tensor, "batch all channels"], ancestry: Ancestry
) -> Float[Tensor, "batch rows channels"]:
    """A depthwise convolution over each row and its nearest ancestors."""
    batch = torch.arange(len(rows), device=rows.device)[:, None, None]
    near = rows[batch, ancestry.recent].to(accurate(rows.dtype))
    weight = conv.weight[:, 0].flip(-1).T.to(near.dtype).contiguous()
    summed = near[:, :, 0] * weight[0]
    for place in range(1, len(weight)):  # an einsum takes twice as long on CPUs
        summed = torch.addcmul(summed, near[:, :, place], weight[place])
    summed = summed if conv.bias is None else summed + conv.bias
    return summed.to(rows.dtype)


def accurate(dtype: torch.dtype) -> torch.dtype:
    """In which states are kept and sums are made."""
    return torch.promote_types(dtype, torch.float32)
