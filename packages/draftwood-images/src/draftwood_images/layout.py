"""Layout of a picture in a sequence: raster order, neighbours, and where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, Shaped

from draftwood_images.picture_model import PictureSettings


@dataclass(frozen=True)
class Places:
    """Places of codes among a picture's tokens.

    Attributes:
        rows, columns: of the grid of codes.
        stride: tokens from a place to the one below it.
    """

    rows: int
    columns: int
    stride: int

    def cut(self, values: Shaped[np.ndarray, " tokens"]) -> Shaped[np.ndarray, "rows columns"]:
        """Values of the codes, of one for each token."""
        return values.reshape(self.rows, self.stride)[:, : self.columns]


@dataclass(frozen=True)
class PictureLayout:
    """Places of a picture's codes, row by row behind a token that opens it.

    Attributes:
        rows, columns: of the grid of codes.
        vocabulary: entries of a row of logits.
        begin: token that opens the picture.
        tokens: token of each code, in the order of the codes.
        line_end: token behind each row of codes; None for none.
    """

    rows: int
    columns: int
    vocabulary: int
    begin: int
    tokens: tuple[int, ...]
    line_end: int | None = None

    @classmethod
    def of(cls, settings: PictureSettings, vocabulary: int) -> "PictureLayout":
        """Layout of a model of this package."""
        first = settings.first_code
        codes = tuple(range(first, first + settings.codes))
        return cls(settings.rows, settings.columns, vocabulary, settings.begin, codes)

    @property
    def stride(self) -> int:
        """Tokens from a place to the one below it."""
        return self.columns + (self.line_end is not None)

    @property
    def places(self) -> Places:
        """Places of the codes."""
        return Places(self.rows, self.columns, self.stride)

    @property
    def length(self) -> int:
        """Tokens of a picture, ends of lines among them."""
        return self.rows * self.stride

    @cached_property
    def bias(self) -> dict[int, float]:
        """Logit bias that bans all tokens but codes."""
        known = set(self.tokens)
        return {each: -np.inf for each in range(self.vocabulary) if each not in known}

    @cached_property
    def is_code(self) -> Bool[np.ndarray, " vocab"]:
        """True for tokens that are codes."""
        mask = np.zeros(self.vocabulary, bool)
        mask[list(self.tokens)] = True
        return mask

    @cached_property
    def code_of(self) -> dict[int, int]:
        """Code of each of their tokens."""
        return {token: code for code, token in enumerate(self.tokens)}

    def is_line_end(self, place: int) -> bool:
        """True for a place of the picture, from 0 on, where nothing is drawn but a line's end."""
        return self.line_end is not None and place % self.stride == self.columns

    def place_after(self, before: Sequence[int]) -> int:
        """Place of the picture that comes behind these tokens, from 0 on.

        Raises:
            ValueError: where nothing has opened a picture.
        """
        for back in range(1, min(len(before), self.length + 1) + 1):
            if before[-back] == self.begin:
                return back - 1
        raise ValueError(f"no picture is open: none of the newest tokens is {self.begin}")

    def has_left(self, place: int) -> bool:
        """True for a place, from 0 on, with a code to its left."""
        return place % self.stride > 0 and not self.is_line_end(place)

    def has_upper(self, place: int) -> bool:
        """True for a place, from 0 on, with one above it."""
        return place >= self.stride

    def left(self, before: Sequence[int]) -> int | None:
        """Code's token to the left of the place behind these tokens; None at the left edge."""
        place = self.place_after(before)
        return before[-1] if self.has_left(place) else None

    def upper(self, before: Sequence[int]) -> int | None:
        """Code's token above the place behind these tokens; None in the first row."""
        place = self.place_after(before)
        return before[-self.stride] if self.has_upper(place) else None

    def grid(self, tokens: Sequence[int]) -> Int[np.ndarray, "rows columns"]:
        """Codes of a whole picture's tokens.

        Raises:
            ValueError: for another number of tokens, and for tokens that are no codes.
        """
        codes = [
            self.code_of.get(token, -1)
            for place, token in enumerate(tokens)
            if not self.is_line_end(place)
        ]
        if len(tokens) != self.length or min(codes) < 0:
            raise ValueError(
                f"a picture has {self.length} tokens that are codes or ends of lines, got"
                f" {len(tokens)}, {codes.count(-1)} of which are others"
            )
        return np.array(codes).reshape(self.rows, self.columns)


@dataclass(frozen=True)
class Raster:
    """Condition that tokens are a picture's, lines and their ends; implements ``Constraint``.

    Attributes:
        layout: of the picture.
    """

    layout: PictureLayout

    @property
    def vocab_size(self) -> int:
        return self.layout.vocabulary

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset()

    def start(self) -> "RasterState":
        return RasterState(self.layout, 0)


@dataclass(frozen=True)
class RasterState:
    """A picture so far under the condition; implements ``ConstraintState``."""

    layout: PictureLayout
    place: int

    @property
    def may_end(self) -> bool:
        return self.place >= self.layout.length

    @property
    def must_end(self) -> bool:
        return False  # the picture's length does that

    def after(self, token: int) -> "RasterState | None":
        fits = 0 <= token < self.layout.vocabulary and self.allowed()[token]
        return RasterState(self.layout, self.place + 1) if fits else None

    def allowed(self) -> Bool[np.ndarray, " vocab"]:
        if not self.layout.is_line_end(self.place):
            return self.layout.is_code
        mask = np.zeros(self.layout.vocabulary, bool)
        mask[self.layout.line_end] = True
        return mask

    def forced(self) -> Sequence[int]:
        end = self.layout.line_end
        return [end] if end is not None and self.layout.is_line_end(self.place) else []
