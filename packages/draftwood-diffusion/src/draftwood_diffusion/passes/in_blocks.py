"""Passes of a model whose blocks see themselves and the blocks before: finished blocks are kept."""

from collections.abc import Sequence

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

    def __init__(self, masked: MaskedModel, prompt: Sequence[int], total: int) -> None:
        super().__init__(masked, prompt, total)
        size = self.settings.block_length
        self.start = len(prompt) // size * size
        self.given = list(prompt[self.start :])
        self._unread = list(prompt[: max(0, self.start - size)])
        self._pending = list(prompt[len(self._unread) : self.start])
        self._before: Float[np.ndarray, " vocab"] | None = None
        self._asked = 0

    @property
    def prompt_left(self) -> int:
        return len(self._unread)

    def most_rows(self, states: int, longest: int) -> int:
        return self.total + (states - 1) * longest

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
        past, own = len(self._pending), [len(each.tokens) for each in states]
        sees = apart([past, *own])
        sees[:, :past] = True
        places = [
            positions_of(self.start - past, past),
            *(positions_of(self.start, count) for count in own),
        ]
        tokens = [*self._pending, *(token for each in states for token in each.tokens)]
        return RowsInput(self.session, tokens, np.concatenate(places), sees)

    def take(
        self, states: Sequence[BlockState], logits: Float[np.ndarray, "rows vocab"]
    ) -> list[Float[np.ndarray, "places vocab"]]:
        past = len(self._pending)
        if past:
            self.session.commit(range(past))
            self._before, self._pending = logits[past - 1].copy(), []
        ends = past + np.cumsum([len(each.tokens) for each in states])
        found = np.split(logits[past:], ends[:-1] - past)
        return [predicting(each, self._before, self.settings.shifted) for each in found]

    def finish(self, tokens: Sequence[int]) -> None:
        self._pending = list(tokens)
        self.start, self.given = self.start + len(tokens), []
