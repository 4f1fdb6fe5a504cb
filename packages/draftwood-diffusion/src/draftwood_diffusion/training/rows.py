"""Rows of training: own texts side by side, in an order that the seed decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood_diffusion.training.own_texts import read_shard


@dataclass(frozen=True, eq=False)
class TextRows:
    """Rows of one length to learn from, and others to judge by."""

    train: Int[Tensor, "rows places"]
    held_out: Int[Tensor, "held_out places"]
    seed: int = 0

    @classmethod
    def of(
        cls,
        shards: Sequence[Path],
        places: int,
        held_out: int,
        numbers: Int[np.ndarray, " vocab"] | None = None,
        seed: int = 0,
    ) -> "TextRows":
        """Fill rows with the texts of shards; each row begins with the beginning of a text.

        Args:
            held_out: rows that are judged by; they are made of the last texts, and the row before
                them, which may hold the beginning of one, is left out.
            numbers: of the writer's tokens in the vocabulary that is trained, -1 for one that it
                lacks, whose rows are left out; None where they have one vocabulary.

        Raises:
            ValueError: for fewer texts than that takes.
        """
        rows = [row for path in shards for row in _filled(path, places)]
        if numbers is not None:
            rows = [row for row in (numbers[each] for each in rows) if row.min() >= 0]
        if len(rows) <= held_out + 1:
            raise ValueError(
                f"a conversion needs more than {held_out + 1} rows of {places} tokens, the own"
                f" texts fill {len(rows)}; write more of them, with --tokens"
            )
        whole = torch.from_numpy(np.stack(rows).astype(np.int64))
        return cls(whole[: -held_out - 1], whole[-held_out:], seed)

    def batch(self, number: int, size: int) -> Int[Tensor, "size places"]:
        """Rows of a batch; every row comes once before any comes again."""
        count = len(self.train)
        chosen = []
        for place in range(number * size, (number + 1) * size):
            chance = torch.Generator().manual_seed(self.seed + place // count)
            chosen.append(int(torch.randperm(count, generator=chance)[place % count]))
        return self.train[chosen]


def _filled(path: Path, places: int) -> list[np.ndarray]:
    """Rows of a shard; a text that finds no room begins the next row."""
    tokens, lengths = read_shard(path)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    rows, place = [], 0
    while place < len(starts) and starts[place] + places <= len(tokens):
        begin = int(starts[place])
        rows.append(tokens[begin : begin + places])
        place = max(place + 1, int(np.searchsorted(starts, begin + places, side="right")) - 1)
    return rows
