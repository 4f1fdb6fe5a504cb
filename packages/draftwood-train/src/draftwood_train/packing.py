"""Pack texts into rows of one length, so that little computation is wasted on padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count

import numpy as np
import torch

from draftwood_train.data.dataset import Texts
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.recipe import PackedRows
from draftwood_train.recomputed import read

OPEN_ROWS = 64
"""Open rows that first-fit tries; more pack no better and cost time."""


@dataclass(frozen=True)
class TextPiece:
    """Places ``start`` to ``stop`` of a text."""

    text: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def pieces_of(texts: Texts | TextsInMemory, places: int, prompts: bool = False) -> list[TextPiece]:
    """Split long texts into pieces of ``places``; those without an answer only if ``prompts``."""
    return [
        TextPiece(number, start, min(start + places, length))
        for number, (length, answer) in enumerate(zip(texts.lengths, texts.answers, strict=True))
        for start in range(0, length, places)
        if prompts or min(start + places, length) > answer
    ]


def first_fit(pieces: Sequence[TextPiece], places: int) -> list[list[TextPiece]]:
    """Put each piece into the first of the newest open rows that has room for it."""
    rows: list[list[TextPiece]] = []
    room: list[int] = []
    for piece in pieces:
        first = max(0, len(rows) - OPEN_ROWS)
        fits = (row for row in range(first, len(rows)) if room[row] >= len(piece))
        row = next(fits, len(rows))
        if row == len(rows):
            rows.append([])
            room.append(places)
        rows[row].append(piece)
        room[row] -= len(piece)
    return rows


@dataclass(frozen=True)
class RowPacking:
    """Batches of packed rows, the same for the same seed, from any batch on.

    Args:
        layers: places in a text's ``states`` of the layers that the recipe reads.
        final: place of the state after the final norm.
        places: of a row.
        rows: of a batch.
        seed: of the order of texts; None keeps theirs.
        only: numbers of the texts that are taken; None takes all.
        prompts: whether pieces of a prompt alone are taken too.
    """

    texts: Texts | TextsInMemory
    layers: tuple[int, ...]
    final: int
    places: int = 512
    rows: int = 16
    seed: int | None = 0
    only: frozenset[int] | None = None
    prompts: bool = False

    def with_rows(self, rows: int, seed: int | None) -> "RowPacking":
        """The same texts in batches of ``rows`` rows, in the order of a seed."""
        return replace(self, rows=rows, seed=seed)

    @property
    def tokens(self) -> int:
        """Tokens of the texts that are taken."""
        lengths = enumerate(self.texts.lengths)
        return sum(each for n, each in lengths if self.only is None or n in self.only)

    def plan(self, epoch: int) -> list[list[list[TextPiece]]]:
        """The batches of an epoch: rows of pieces.

        The last batch may be smaller.
        """
        pieces = pieces_of(self.texts, self.places, self.prompts)
        if self.only is not None:
            pieces = [piece for piece in pieces if piece.text in self.only]
        if self.seed is None:
            rows = first_fit(pieces, self.places)
        else:
            drawn = np.random.default_rng((self.seed, epoch))
            rows = first_fit([pieces[n] for n in drawn.permutation(len(pieces))], self.places)
            rows = [rows[n] for n in drawn.permutation(len(rows))]
        return [rows[start : start + self.rows] for start in range(0, len(rows), self.rows)]

    def batches(self, first: int = 0, stride: int = 1) -> Iterator[PackedRows]:
        """Endless batches, epoch after epoch: numbers ``first``, ``first + stride``, ...

        Raises:
            ValueError: where there is no answer to learn from.
        """
        begun, epoch, plan = 0, 0, self.plan(0)
        if not plan:
            raise ValueError("the data set has no answers to learn from; write more texts")
        for number in count(first, stride):
            while number >= begun + len(plan):
                begun, epoch = begun + len(plan), epoch + 1
                plan = self.plan(epoch)
            yield self.packed(plan[number - begun])

    def packed(self, batch: Sequence[Sequence[TextPiece]]) -> PackedRows:
        """The rows of a batch, read from the texts."""
        texts = read(self.texts, (piece.text for row in batch for piece in row))
        dim = texts[batch[0][0].text].states.shape[-1]
        rows = _blank(len(batch), self.places, len(self.layers), dim)
        for number, row in enumerate(batch):
            at = 0
            for segment, piece in enumerate(row):
                self._put(rows, texts[piece.text], (number, at, segment), piece)
                at += len(piece)
        return rows

    def _put(
        self, rows: PackedRows, text: StoredText, place: tuple[int, int, int], piece: TextPiece
    ) -> None:
        """Write a piece of a text to its row, from a place on, as a segment."""
        (row, at, segment), part = place, slice(piece.start, piece.stop)
        here = (row, slice(at, at + len(piece)))
        positions = torch.arange(piece.start, piece.stop)
        states = text.states[part].float()
        rows.tokens[here] = text.tokens[part].long()
        rows.segments[here] = segment
        rows.positions[here] = positions
        rows.is_answer[here] = positions >= text.answer
        rows.is_greedy[here] = text.is_greedy
        rows.states[here] = states[:, list(self.layers)]
        rows.final[here] = states[:, self.final]
        rows.log_normalizer[here] = text.log_normalizer[part].float()


def _blank(rows: int, places: int, reads: int, dim: int) -> PackedRows:
    shape = (rows, places)
    return PackedRows(
        tokens=torch.zeros(shape, dtype=torch.long),
        segments=torch.full(shape, -1),
        positions=torch.zeros(shape, dtype=torch.long),
        is_answer=torch.zeros(shape, dtype=torch.bool),
        is_greedy=torch.zeros(shape, dtype=torch.bool),
        states=torch.zeros((*shape, reads, dim)),
        final=torch.zeros((*shape, dim)),
        log_normalizer=torch.zeros(shape),
    )


def moved(rows: PackedRows, device: torch.device) -> PackedRows:
    """The same rows on a device."""
    return replace(
        rows, **{each.name: getattr(rows, each.name).to(device) for each in fields(rows)}
    )
