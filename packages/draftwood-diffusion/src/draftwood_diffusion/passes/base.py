"""Passes of a text: which rows a model runs for states of a block."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from draftwood.models.model import ModelSession, RowsInput
from draftwood_diffusion.block_state import BlockState
from draftwood_diffusion.masked_model import MaskedModel


class Passes(ABC):
    """Rows of one text on one model.

    Args:
        masked: the model.
        prompt: its tokens.
        total: places of prompt and text.

    Attributes:
        start: first place of the block under way.
        given: tokens of the prompt at its beginning.
        grid: place from which blocks are counted.
    """

    joins_next: ClassVar[bool] = False
    """True if the masks of the next block may run behind a written one."""

    def __init__(self, masked: MaskedModel, prompt: Sequence[int], total: int) -> None:
        self.settings, self.total = masked.settings, total
        self.session: ModelSession = masked.model.start()
        self.start, self.grid, self.given = len(prompt), 0, list[int]()

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt that are yet to be run before the first block."""
        return 0

    @abstractmethod
    def most_rows(self, states: int, longest: int) -> int:
        """Tokens and rows that the cache holds at once.

        Args:
            states: most of a pass behind a block's first, which has one.
            longest: most places of a block.
        """

    def prompt_rows(self, most: int) -> RowsInput | None:
        """Rows that the prompt needs before the first block; None where it needs no more.

        Args:
            most: of them, but whole blocks are run, and at least one.
        """
        del most
        return None

    def take_prompt(self) -> None:
        """Keep rows of the prompt that were run."""
        raise AssertionError("the prompt asked for no rows")

    @abstractmethod
    def rows(self, states: Sequence[BlockState]) -> RowsInput:
        """Rows of a pass over states of the block under way, each of which is as if alone."""

    @abstractmethod
    def take(
        self, states: Sequence[BlockState], logits: Float[np.ndarray, "rows vocab"]
    ) -> list[Float[np.ndarray, "places vocab"]]:
        """Logits of the places of each state, once the pass was run."""

    def keep(self, run: int | None) -> None:
        """Keep rows of the newest pass.

        Args:
            run: number of the state that came true and ran with the next block's masks, if any.
        """
        del run

    @abstractmethod
    def finish(self, tokens: Sequence[int]) -> None:
        """Go on behind the block under way, which has these tokens for good."""

    def close(self) -> None:
        """Give the cache back."""
        self.session.close()


def apart(sizes: Sequence[int]) -> Bool[np.ndarray, "rows rows"]:
    """Mask of groups of so many rows, each of which sees itself alone."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    return group[:, None] == group


def block_causal(start: int, end: int, size: int) -> Bool[np.ndarray, "rows rows"]:
    """Mask of these places, each of which sees its own block of so many places and those before."""
    block = np.arange(start, end) // size
    return block[None] <= block[:, None]


def predicting(
    rows: Float[np.ndarray, "places vocab"],
    before: Float[np.ndarray, " vocab"] | None,
    shifted: bool,
) -> Float[np.ndarray, "places vocab"]:
    """Logits of places, from the logits of their rows.

    Args:
        rows: of the places themselves.
        before: the row before them; None before the first place of all, which a shifted model
            cannot predict.
        shifted: whether the row of a place predicts the next one.
    """
    if not shifted:
        return rows
    first = rows[:1] if before is None else before[None]
    return np.concatenate([first, rows[:-1]])


def positions_of(start: int, count: int) -> Int[np.ndarray, " rows"]:
    """Positions of so many places."""
    return np.arange(start, start + count)
