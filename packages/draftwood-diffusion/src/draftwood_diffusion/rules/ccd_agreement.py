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

    After passes of one token each a buffer of the places of least entropy grows by one a pass, as
    it does in the last of those passes. Places of the buffer that were in the buffer before, with
    the same likeliest token, are all fixed; where the first one is new, it alone is. The released
    buffer shrinks again where few masks are left; ours has no more places than are open.

    Args:
        warm: passes of one token each.
        most: places of the buffer.
    """

    name: ClassVar[str] = "ccd-agreement"
    summary: ClassVar[str] = "places of low entropy on whose token two passes agree"
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
        last = view.history[-1]
        now = _buffer(view, view, self._size(number))
        before = _buffer(last, view, self._size(number - 1))
        same = view.predictions == last.predictions
        if now[0] not in before:
            return now[:1]
        agreed = np.array([place for place in now if place in before and same[place]], np.int64)
        return agreed if len(agreed) else now[:1]

    def _size(self, number: int) -> int:
        """Places of a pass's buffer; passes count from 0."""
        return min(1 + max(0, number - max(0, self.warm - 2)), self.most)


def _buffer(view: View, later: View, size: int) -> Int[np.ndarray, " buffer"]:
    """Places of least entropy in a pass, of those that are open in a later one or in itself."""
    return later.open[np.argsort(view.entropy[later.open], kind="stable")][:size]
