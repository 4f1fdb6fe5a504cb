"""Places whose prediction stood still, as the authors' code has it: two passes that agree."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class CcdAgreement(UnmaskingRule):
    """The rule that was released beside the paper on coherent contextual decoding (2025,
    arXiv:2512.02044), which averages nothing.

    After passes of one token each a buffer of the most confident places grows from 1 by one a
    pass. Places of the buffer that were in the buffer before, with the same likeliest token, are
    all fixed; where the most confident one is new, it alone is. The released buffer shrinks again
    where few masks are left; ours has no more places than are open.

    Args:
        warm: passes of one token each, by least entropy.
        most: places of the buffer.
    """

    name: ClassVar[str] = "ccd-agreement"
    summary: ClassVar[str] = "confident places on whose token two passes agree"
    source: ClassVar[str] = "released code of CCD, 2025, arXiv:2512.02044"
    warm: int = knob(5, "passes of one token each", 0)
    most: int = knob(5, "places of the buffer", 1)

    @property
    def remembers(self) -> int:
        return self.warm + self.most

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        number = len(view.history)  # of this pass; once all are remembered it stands still
        if number < max(1, self.warm):
            return np.array([view.best(-view.entropy)])
        size = min(number - self.warm + 1, self.most)
        now, before = _buffer(view, size), _buffer(view.history[-1], max(1, size - 1), view)
        same = view.predictions == view.history[-1].predictions
        if now[0] not in before:
            return now[:1]
        agreed = np.array([place for place in now if place in before and same[place]], np.int64)
        return agreed if len(agreed) else now[:1]


def _buffer(view: View, size: int, later: View | None = None) -> Int[np.ndarray, " buffer"]:
    """Most confident places of a pass; of one before, those that are open still."""
    places = view.open if later is None else later.open
    return places[np.argsort(-view.confidence[places], kind="stable")][:size]
