"""Places whose prediction stood still, by the paper: distributions averaged over passes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class Ccd(UnmaskingRule):
    """Coherent contextual decoding (2025, arXiv:2512.02044): candidates are the most confident
    places, and their distributions of the newest passes are averaged.

    A candidate is coherent if every one of these passes held the same token likeliest; all coherent
    ones are fixed, and the one of the highest averaged confidence in any case. What makes a
    candidate coherent is our reading of the paper.

    Args:
        passes: whose distributions are averaged, this one included.
        top: candidates.
    """

    name: ClassVar[str] = "ccd"
    summary: ClassVar[str] = "confident places whose likeliest token stood still over passes"
    source: ClassVar[str] = "CCD, 2025, arXiv:2512.02044"
    passes: int = knob(3, "passes whose distributions are averaged", 1)
    top: int = knob(4, "candidates", 1)

    @property
    def remembers(self) -> int:
        return self.passes - 1

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        candidates = view.open[np.argsort(-view.confidence[view.open], kind="stable")][: self.top]
        seen = (*view.history, view)
        averaged = np.mean([each.probs[candidates] for each in seen], axis=0)
        best = candidates[averaged.max(-1).argmax()]
        if len(seen) < self.passes:
            return np.array([best])
        stood = [each.predictions[candidates] == view.predictions[candidates] for each in seen]
        coherent = np.zeros(len(view.tokens), bool)
        coherent[candidates[np.all(stood, axis=0)]] = True
        coherent[best] = True
        return np.flatnonzero(coherent)
