"""Rows that a picture's new places start from, until a pass has seen them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from draftwood_images.layout import PictureLayout

Row = Float[np.ndarray, " vocab"]
Start = Literal["random", "left", "upper", "row"]
STARTS: tuple[Start, ...] = get_args(Start)


@dataclass(frozen=True)
class PictureStart:
    """Start of a picture's new place, by its neighbours; implements ``StartRow``.

    Teng et al. 2024, arXiv:2410.01699. At an edge where there is no such neighbour it is ``left``
    instead of ``upper``, and else ``random``.

    Attributes:
        layout: of the picture.
        kind: ``random``: any code; ``left`` and ``upper``: that neighbour's code for certain;
            ``row``: the row that the left neighbour was drawn from.

    Raises:
        ValueError: for another kind.
    """

    layout: PictureLayout
    kind: Start = "random"

    def __post_init__(self) -> None:
        if self.kind not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.kind!r}")

    def row(self, before: Sequence[int], left: Row | None, vocab: int) -> Row:
        """Probabilities [vocab] of a new place; see ``StartRow``."""
        if self.layout.line_end is not None and self.layout.is_line_end(
            self.layout.place_after(before)
        ):
            return _certain(self.layout.line_end, vocab)
        return self._rules[self.kind](before, left, vocab)

    @cached_property
    def _rules(self) -> dict[Start, Callable[[Sequence[int], Row | None, int], Row]]:
        return {
            "random": lambda before, left, vocab: self._random,
            "left": lambda before, left, vocab: self._copied(self.layout.left(before), vocab),
            "upper": self._upper,
            "row": self._same_row,
        }

    @cached_property
    def _random(self) -> Row:
        return self.layout.is_code.astype(np.float32) / np.float32(len(self.layout.tokens))

    def _copied(self, token: int | None, vocab: int) -> Row:
        return self._random if token is None else _certain(token, vocab)

    def _upper(self, before: Sequence[int], left: Row | None, vocab: int) -> Row:
        above = self.layout.upper(before)
        return self._copied(self.layout.left(before) if above is None else above, vocab)

    def _same_row(self, before: Sequence[int], left: Row | None, vocab: int) -> Row:
        inside = self.layout.left(before) is not None
        return left if inside and left is not None else self._random


def _certain(token: int, vocab: int) -> Row:
    row = np.zeros(vocab, np.float32)
    row[token] = 1.0
    return row
