"""Chains that may end early, as their drafter decides."""

from dataclasses import dataclass

from draftwood.tree import Draw
from draftwood.validation import positive


@dataclass(frozen=True)
class EndingChain:
    """Base of chains that may end before their length; tokens are drawn.

    Args:
        length: most draft tokens.

    Raises:
        ValueError: for a length below 1.
    """

    length: int = 8

    def __post_init__(self) -> None:
        positive("length", [self.length])

    @property
    def draw(self) -> Draw:
        return "distinct"

    @property
    def nodes(self) -> int:
        return self.length

    @property
    def depth(self) -> int:
        return self.length
