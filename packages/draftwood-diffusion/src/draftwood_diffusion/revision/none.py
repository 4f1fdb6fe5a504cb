"""Written tokens stay."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood_diffusion.revision.revise import Revision
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class KeepAll(Revision):
    """No place changes again, as in LLaDA (Nie et al. 2025, arXiv:2502.09992)."""

    name: ClassVar[str] = "keep"
    summary: ClassVar[str] = "what is written stays"
    source: ClassVar[str] = "LLaDA, Nie et al. 2025, arXiv:2502.09992"

    def changes(self, view: View) -> Int[np.ndarray, " 0"]:
        return view.open[:0]
