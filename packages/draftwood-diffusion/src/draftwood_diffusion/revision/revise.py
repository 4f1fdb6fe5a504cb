"""Revision: which written places may change again."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from draftwood_diffusion.part import Part
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class Revision(Part):
    """Says which written places take the model's likeliest token."""

    @property
    def passes_on_written(self) -> int:
        """Passes over a block that is written, at most, until one of them changes nothing."""
        return 0

    @abstractmethod
    def changes(self, view: View) -> Int[np.ndarray, " changed"]:
        """Written places of the block whose token becomes ``view.predictions``."""
