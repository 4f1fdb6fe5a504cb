"""Rules: which places of a block are fixed now."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood_diffusion.part import Part
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class UnmaskingRule(Part):
    """A pure function from a view to open places, at least one.

    Attributes:
        is_one_by_one: True if it fixes one place a pass.
        knows_text: True if it is told the text that will be written, as a bound of other rules.
        names_file: True if one of its knobs names a file.
    """

    is_one_by_one: ClassVar[bool] = False
    knows_text: ClassVar[bool] = False

    @property
    def names_file(self) -> bool:
        return False

    def beside(self, folder: Path | None) -> "UnmaskingRule":
        """The rule as it reads files of the model's folder; None for a model without one."""
        del folder
        return self

    def require_file(self) -> None:
        """Read its file.

        Raises:
            ValueError: for one that is missing or holds something else.
        """

    @property
    def digest(self) -> str | None:
        """Digest of its file; None for a rule that reads none."""
        return None

    @property
    def most_places(self) -> int | None:
        """Places of a block that it can read at most; None for any number."""
        return None

    @property
    def remembers(self) -> int:
        """Views of the passes before that it reads."""
        return 0

    @abstractmethod
    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        """Places of the block, in any order."""
