"""Every place of little entropy."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class LittleEntropy(UnmaskingRule):
    """The rule with which dParallel decodes (2025, arXiv:2509.26488).

    Args:
        most: nats up to which a place is fixed.
    """

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = "every place with at most this entropy"
    source: ClassVar[str] = "dParallel, 2025, arXiv:2509.26488"
    most: float = knob(0.5, "nats up to which a place is fixed", 0)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        return view.above(-view.entropy, -self.most)
