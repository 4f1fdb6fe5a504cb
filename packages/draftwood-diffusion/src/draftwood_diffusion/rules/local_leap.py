"""Less confidence is enough beside places of much."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class LocalLeap(UnmaskingRule):
    """LocalLeap (2025, arXiv:2510.07081): open places of high confidence are anchors, and around
    them a lower threshold holds.

    Args:
        tau: confidence of an anchor.
        radius: places to either side of one.
        near: confidence that is enough there.
    """

    name: ClassVar[str] = "local-leap"
    summary: ClassVar[str] = "places above a threshold, and less sure ones close to them"
    source: ClassVar[str] = "LocalLeap, 2025, arXiv:2510.07081"
    tau: float = knob(0.9, "confidence of an anchor", 0, 1)
    radius: int = knob(4, "places to either side of an anchor", 0)
    near: float = knob(0.75, "confidence that is enough there", 0, 1)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        anchors = np.flatnonzero(view.is_open & (view.confidence >= self.tau))
        chosen = np.zeros(len(view.tokens), bool)
        chosen[anchors] = True
        if len(anchors):
            distance = abs(np.arange(len(chosen))[:, None] - anchors).min(1)
            beside = (distance <= self.radius) & (view.confidence >= self.near)
            chosen |= view.is_open & beside
        return view.with_best(chosen, view.confidence)
