"""Passes of a model that sees everything: the whole text runs every time."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from draftwood.models.model import RowsInput
from draftwood_diffusion.block_state import BlockState
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.passes.base import Passes, apart, positions_of, predicting


class AtOnce(Passes):
    """Fully bidirectional passes (LLaDA, Nie et al. 2025, arXiv:2502.09992): prompt, text, and
    masks to the text's greatest length. Nothing is kept from pass to pass.
    """

    def __init__(self, masked: MaskedModel, prompt: Sequence[int], total: int) -> None:
        super().__init__(masked, prompt, total)
        self.grid, self._written = len(prompt), list(prompt)

    def most_rows(self, states: int, longest: int) -> int:
        return states * self.total

    def rows(self, states: Sequence[BlockState]) -> RowsInput:
        texts = [self._text(each) for each in states]
        sizes = [len(each) for each in texts]
        places = np.concatenate([positions_of(0, size) for size in sizes])
        tokens = [token for each in texts for token in each]
        return RowsInput(self.session, tokens, places, apart(sizes))

    def _text(self, state: BlockState) -> list[int]:
        """All places with a state of the block."""
        found = [*self._written, *state.tokens]
        return found if state.is_last else found + [state.mask] * (self.total - len(found))

    def take(
        self, states: Sequence[BlockState], logits: Float[np.ndarray, "rows vocab"]
    ) -> list[Float[np.ndarray, "places vocab"]]:
        found, begin = [], 0
        for each in states:
            first = begin + self.start
            before = logits[first - 1] if self.start else None
            own = logits[first : first + len(each.tokens)]
            found.append(predicting(own, before, self.settings.shifted))
            begin += len(self._text(each))
        return found

    def finish(self, tokens: Sequence[int]) -> None:
        self._written += tokens
        self.start += len(tokens)
