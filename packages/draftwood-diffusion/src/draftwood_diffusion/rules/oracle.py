"""The bound: every place whose prediction is known to stay."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class KnownText(UnmaskingRule):
    """Learn2PD's greedy bound (2025, arXiv:2509.25188), which knows the one-by-one text: it fixes
    what that text holds. Where nothing agrees, it fixes the most confident place.
    """

    name: ClassVar[str] = "oracle"
    summary: ClassVar[str] = "a bound: every place whose likeliest token the text will hold"
    source: ClassVar[str] = "Learn2PD, 2025, arXiv:2509.25188"
    knows_text: ClassVar[bool] = True

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        if view.reference is None:
            raise ValueError("rule 'oracle' is told the text in advance, and nobody knows this one")
        right = view.is_open & (view.predictions == view.reference)
        if right.any():
            return np.flatnonzero(right)
        return np.array([view.best(view.confidence)])
