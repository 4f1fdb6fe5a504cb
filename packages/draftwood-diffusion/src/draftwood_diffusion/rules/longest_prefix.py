"""The first open places as long as each is confident."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class LongestPrefix(UnmaskingRule):
    """Lexical unit decoding's rule (2024, arXiv:2405.15208). Its threshold is our choice, as the
    authors' is not known to us.

    Args:
        beta: probability of the likeliest token with which a unit goes on.
    """

    name: ClassVar[str] = "longest-prefix"
    summary: ClassVar[str] = "the next places in reading order, as long as each is confident"
    source: ClassVar[str] = "Lexical Unit Decoding, 2024, arXiv:2405.15208"
    beta: float = knob(0.9, "probability with which a unit goes on", 0, 1)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        sure = view.confidence[view.open] >= self.beta
        count = len(sure) if sure.all() else int(sure.argmin())
        return view.open[: max(1, count)]
