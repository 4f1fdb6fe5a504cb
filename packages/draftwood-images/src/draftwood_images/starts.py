"""Rows that a picture's new places start from, until a pass has seen them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from draftwood_images.layout import PictureLayout

Row = Float[np.ndarray, " vocab"]
Start = Literal["random", "left", "upper", "row", "upper-row"]
STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True)
class PictureStart:
    """Start of a picture's new place, by its neighbours; implements ``StartRow``.

    Teng et al. 2024, arXiv:2410.01699. At an edge where there is no such neighbour it is ``left``
    instead of ``upper``, ``row`` instead of ``upper-row``, and else ``random``.

    Attributes:
        layout: of the picture.
        kind: ``random``: any code; ``left`` and ``upper``: that neighbour's code for certain;
            ``row`` and ``upper-row``: the row that it came from, the draft's for a draft token and
            the target's for one of the text.

    Raises:
        ValueError: for another kind.
    """

    layout: PictureLayout
    kind: Start = "random"

    def __post_init__(self) -> None:
        if self.kind not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.kind!r}")

    @property
    def reach(self) -> int:
        """Tokens back to the neighbour whose row is asked for; 0 for none."""
        return {"row": 1, "upper-row": self.layout.stride}.get(self.kind, 0)

    def backs(self, before: Sequence[int]) -> list[int] | None:
        """Tokens back to the code that each place repeats; see ``CopyingStart``."""
        if self.reach or self.layout.line_end is not None:
            return None
        first = self.layout.place_after(before) + 1
        return [self._back(place) for place in range(first, self.layout.length)] or [0]

    def _back(self, place: int) -> int:
        if self.kind == "upper" and self.layout.has_upper(place):
            return self.layout.stride
        return int(self.kind != "random" and self.layout.has_left(place))

    def row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        """Probabilities [vocab] of a new place; see ``StartRow``."""
        if self.layout.line_end is not None and self.layout.is_line_end(
            self.layout.place_after(before)
        ):
            return _certain(self.layout.line_end, vocab)
        return self._rules[self.kind](before, rows, vocab)

    @cached_property
    def _rules(self) -> dict[Start, Callable[[Sequence[int], Sequence[Row], int], Row]]:
        return {
            "random": lambda before, rows, vocab: self._random,
            "left": lambda before, rows, vocab: self._copied(self.layout.left(before), vocab),
            "upper": self._upper,
            "row": self._left_row,
            "upper-row": self._upper_row,
        }

    @cached_property
    def _random(self) -> Row:
        return self.layout.is_code.astype(np.float32) / np.float32(len(self.layout.tokens))

    def _copied(self, token: int | None, vocab: int) -> Row:
        return self._random if token is None else _certain(token, vocab)

    def _upper(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        above = self.layout.upper(before)
        return self._copied(self.layout.left(before) if above is None else above, vocab)

    def _left_row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        known = bool(rows) and self.layout.left(before) is not None
        return rows[-1] if known else self._random

    def _upper_row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        if self.layout.upper(before) is None:
            return self._left_row(before, rows, vocab)
        back = self.layout.stride
        return rows[-back] if len(rows) >= back else self._random


def _certain(token: int, vocab: int) -> Row:
    row = np.zeros(vocab, np.float32)
    row[token] = 1.0
    return row
