"""Blocks end where a line or a sentence does."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from draftwood.methods.knobs import knob
from draftwood_diffusion.blocks.reach import BlockEnds, BlockPlace
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class AdaBlock(BlockEnds):
    """AdaBlock-dLLM (2025, arXiv:2509.26432): a block's first pass looks for a delimiter.

    It is looked for in the first quarter of the text's length, rounded down, as far as places are
    left and the rule can read them. Where the likeliest token is a delimiter, the block ends with
    the most confident of them; else it has the model's own length.

    Args:
        delta: confidence that such a place has at least.
        delimiters: tokens; where none are given, those of line breaks are asked of the tokenizer.
    """

    name: ClassVar[str] = "adablock"
    summary: ClassVar[str] = "blocks end at a delimiter that the first pass expects"
    source: ClassVar[str] = "AdaBlock-dLLM, 2025, arXiv:2509.26432"
    delta: float = knob(0.3, "confidence of a delimiter at least", 0, 1)
    delimiters: frozenset[int] = field(default=frozenset())

    def end(self, place: BlockPlace) -> int:
        return min(place.total, max(place.start + self._window(place), self._usual(place)))

    def kept(self, view: View, place: BlockPlace) -> int:
        if not self.delimiters:
            raise ValueError(
                "blocks 'adablock' end at delimiters, and this model's tokenizer has no token for a"
                " line break; leave adablock out"
            )
        (found,) = np.nonzero(view.is_open & np.isin(view.predictions, sorted(self.delimiters)))
        found = found[found < self._window(place)]
        if len(found):
            best = found[view.confidence[found].argmax()]
            if view.confidence[best] >= self.delta:
                return int(best) + 1
        return min(len(view.tokens), self._usual(place) - place.start)

    @staticmethod
    def _window(place: BlockPlace) -> int:
        """Places that are looked at, those of the prompt in this block included."""
        written = max(0, place.prompt - place.start)
        window = written + min((place.total - place.prompt) // 4, place.total - place.start)
        return window if place.most is None else min(window, place.most)

    @staticmethod
    def _usual(place: BlockPlace) -> int:
        """First place behind a block of the model's own length that begins here."""
        return min(place.total, place.start + place.length)
