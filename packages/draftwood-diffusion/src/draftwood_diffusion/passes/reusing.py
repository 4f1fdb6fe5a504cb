"""Passes of a model that sees everything, which run a block's surroundings once a block."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from draftwood.models.model import RowsInput
from draftwood_diffusion.block_state import BlockState
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.passes.at_once import AtOnce
from draftwood_diffusion.passes.base import apart, positions_of
from draftwood_diffusion.reuse import Reuse


class Reusing(AtOnce):
    """Approximate passes (Fast-dLLM, Wu et al. 2025, arXiv:2505.22618).

    A block's first pass runs the whole text. Later ones run the block, and the masks behind it
    unless they are kept too, beside keys and values of that first pass.

    Args:
        masked, prompt, total: as for ``Passes``.
        reuse: what is kept.
    """

    def __init__(
        self, masked: MaskedModel, prompt: Sequence[int], total: int, reuse: Reuse
    ) -> None:
        super().__init__(masked, prompt, total)
        self.reuse = reuse
        self._is_kept = False
        self._lead = int(self.settings.shifted)  # rows before the block that predict it

    def most_rows(self, states: int, longest: int) -> int:
        if self.reuse.keeps_suffix:
            return self.total + states * (self._lead + longest)
        return self.total + (states - 1) * (self.total - self._first)

    @property
    def _first(self) -> int:
        """First place that runs in every pass."""
        return self.start - self._lead

    def rows(self, states: Sequence[BlockState]) -> RowsInput:
        if not self._is_kept:
            self.session.rewind(self.session.length)  # its blocks of the cache stay
            return super().rows(states)
        texts = [self._own(each) for each in states]
        sizes = [len(each) for each in texts]
        places = np.concatenate([positions_of(self._first, size) for size in sizes])
        tokens = [token for each in texts for token in each]
        outside = [self._outside(state, size) for state, size in zip(states, sizes, strict=True)]
        sees = np.hstack([np.concatenate(outside), apart(sizes)])
        return RowsInput(self.session, tokens, places, sees)

    def _own(self, state: BlockState) -> list[int]:
        """Tokens that run for a state."""
        end = self.start + len(state.tokens) if self.reuse.keeps_suffix else self.total
        return self._text(state)[self._first : end]

    def _outside(self, state: BlockState, rows: int) -> Bool[np.ndarray, "rows kept"]:
        """Mask of kept places that a state's rows see."""
        kept = self.session.length
        seen = np.ones((rows, kept), bool)
        seen[:, self._first : kept if state.is_last else self.start + len(state.tokens)] = False
        return seen

    def take(
        self, states: Sequence[BlockState], logits: Float[np.ndarray, "rows vocab"]
    ) -> list[Float[np.ndarray, "places vocab"]]:
        if not self._is_kept:
            found = super().take(states, logits)
            self.session.commit(range(len(logits) if self.reuse.keeps_suffix else self._first))
            self._is_kept = True
            return found
        ends = np.cumsum([len(self._own(each)) for each in states])
        own = np.split(logits, ends[:-1])
        return [rows[: len(state.tokens)] for rows, state in zip(own, states, strict=True)]

    def finish(self, tokens: Sequence[int]) -> None:
        super().finish(tokens)
        self._is_kept = False
