"""Written tokens change where the model has become sure of another one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.methods.knobs import knob
from draftwood_diffusion.revision.revise import Revision
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class TokenEditing(Revision):
    """LLaDA2.1's token editing (2026, arXiv:2602.08676), within the block under way.

    A block whose last mask is gone is edited on, until a pass changes nothing.

    It needs a model that was trained to predict written places too: others say of a written token
    what they are used to say in its place.

    Args:
        above: probability of another token from which it takes the place of the written one.
        passes: over a written block at most.
    """

    name: ClassVar[str] = "edit"
    summary: ClassVar[str] = "written tokens change where another one has this probability"
    source: ClassVar[str] = "LLaDA2.1, 2026, arXiv:2602.08676"
    above: float = knob(0.9, "probability of another token", 0, 1)
    passes: int = knob(16, "passes over a written block at most", 0)

    @property
    def passes_on_written(self) -> int:
        return self.passes

    def changes(self, view: View) -> Int[np.ndarray, " changed"]:
        other = view.predictions != view.tokens
        return np.flatnonzero(~view.is_open & other & (view.confidence >= self.above))
