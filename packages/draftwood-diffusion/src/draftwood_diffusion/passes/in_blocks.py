"""Passes of a model whose blocks see themselves and the blocks before: finished blocks are kept."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.models.model import RowsInput
from draftwood_diffusion.block_state import BlockState
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.passes.base import Passes, apart, block_causal, positions_of, predicting


class InBlocks(Passes):
    """Block diffusion with a cache (Arriola et al. 2025, arXiv:2503.09573).

    Whole blocks of the prompt are read as the model was trained to read them, each seeing itself
    and those before. What is left of the prompt begins the first block. A block that is finished
    enters the cache in the first pass of the next one, so it takes no pass of its own.
    """

    joins_next: ClassVar[bool] = True

    def __init__(self, masked: MaskedModel, prompt: Sequence[int], total: int) -> None:
        super().__init__(masked, prompt, total)
        size = self.settings.block_length
        self.start = len(prompt) // size * size
        self.given = list(prompt[self.start :])
        self._unread = list(prompt[: max(0, self.start - size)])
        self._pending = list(prompt[len(self._unread) : self.start])
        self._before: Float[np.ndarray, " vocab"] | None = None
        self._asked = 0
        # of the newest pass: each state's rows of its block, and logits of the last one
        self._ran = list[tuple[range, Float[np.ndarray, " vocab"]]]()
        self._is_kept = False  # the block under way, which is written

    @property
    def prompt_left(self) -> int:
        return len(self._unread)

    def most_rows(self, states: int, longest: int) -> int:
        return self.total + (states - 1) * 2 * longest

    def prompt_rows(self, most: int) -> RowsInput | None:
        if not self._unread:
            return None
        size, past = self.settings.block_length, self.session.length
        self._asked = min(len(self._unread), max(1, most // size) * size)
        places = positions_of(past, self._asked)
        sees = block_causal(past, past + self._asked, size)
        return RowsInput(self.session, self._unread[: self._asked], places, sees, "none")

    def take_prompt(self) -> None:
        self.session.commit(range(self._asked))
        del self._unread[: self._asked]

    def rows(self, states: Sequence[BlockState]) -> RowsInput:
        past, sizes = len(self._pending), self._sizes(states)
        sees = apart([past, *(size for own in sizes for size in own)])
        sees[:, :past] = True
        places, tokens = [positions_of(self.start - past, past)], [*self._pending]
        for state, (written, masks) in zip(states, sizes, strict=True):
            first = len(tokens)
            tokens += (*state.tokens, *[state.mask] * masks)
            places.append(positions_of(self.start, written + masks))
            sees[first + written : len(tokens), first : first + written] = True
        return RowsInput(self.session, tokens, np.concatenate(places), sees)

    @staticmethod
    def _sizes(states: Sequence[BlockState]) -> list[tuple[int, int]]:
        """Rows of each state's block, and of the masks behind it."""
        return [(len(each.tokens), each.next_masks) for each in states]

    def take(
        self, states: Sequence[BlockState], logits: Float[np.ndarray, "rows vocab"]
    ) -> list[Float[np.ndarray, "places vocab"]]:
        begin = len(self._pending)
        if begin:
            self._before = logits[begin - 1].copy()
        self._ran, found = [], list[Float[np.ndarray, "places vocab"]]()
        for written, masks in self._sizes(states):
            end, before = begin + written, self._before
            self._ran.append((range(begin, end), logits[end - 1]))
            own = logits[begin:end]
            if masks:
                own, before, end = logits[end : end + masks], logits[end - 1], end + masks
            found.append(predicting(own, before, self.settings.shifted))
            begin = end
        return found

    def keep(self, run: int | None) -> None:
        rows, self._is_kept = [*range(len(self._pending))], run is not None
        if run is not None:
            block, last = self._ran[run]
            rows += block
            self._before = last.copy()
        if rows:
            self.session.commit(rows)
            self._pending = []

    def finish(self, tokens: Sequence[int]) -> None:
        self._pending = [] if self._is_kept else list(tokens)
        self.start, self.given = self.start + len(tokens), []
