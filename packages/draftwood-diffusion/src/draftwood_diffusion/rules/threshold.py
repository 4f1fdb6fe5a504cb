"""Every place of high confidence."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class Threshold(UnmaskingRule):
    """Fast-dLLM's rule (Wu et al. 2025, arXiv:2505.22618).

    Args:
        tau: probability of the likeliest token from which a place is fixed.
    """

    name: ClassVar[str] = "threshold"
    summary: ClassVar[str] = "every place whose likeliest token has this probability"
    source: ClassVar[str] = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618"
    tau: float = knob(0.9, "probability from which a place is fixed", 0, 1)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        return view.above(view.confidence, self.tau)
