"""A given number of the most confident places a pass."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class TopK(UnmaskingRule):
    """LLaDA's schedule: tokens a pass are given, not asked of the model (Nie et al. 2025,
    arXiv:2502.09992).

    Args:
        k: places a pass, fewer where fewer are open.
    """

    name: ClassVar[str] = "top-k"
    summary: ClassVar[str] = "the k most confident places a pass"
    source: ClassVar[str] = "LLaDA, Nie et al. 2025, arXiv:2502.09992"
    k: int = knob(2, "places a pass", 1)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        order = np.argsort(-view.confidence[view.open], kind="stable")
        return view.open[order[: self.k]]
