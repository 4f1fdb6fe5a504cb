"""As many places as their confidence allows together."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class Factor(UnmaskingRule):
    """Fast-dLLM's second rule (Wu et al. 2025, arXiv:2505.22618): the most n with (n + 1)(1 - c) <
    f, where c is the confidence of the n-th best place.

    With n places of confidence above 1 - e and (n + 1) e <= 1 the likeliest tokens of the places
    are the likeliest text of all of them.

    Args:
        f: bound of that product.
    """

    name: ClassVar[str] = "factor"
    summary: ClassVar[str] = "the most n places whose doubt times n + 1 stays below f"
    source: ClassVar[str] = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618"
    f: float = knob(1.0, "bound of doubt times places", 0)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        order = view.open[np.argsort(-view.confidence[view.open], kind="stable")]
        doubt = 1.0 - view.confidence[order]
        (fitting,) = np.nonzero((np.arange(len(order)) + 2) * doubt < self.f)
        return order[: fitting[-1] + 1 if len(fitting) else 1]
