"""Several chains drawn independently of each other."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.native.drawn_trees import DrawnShape
from draftwood.rng import Rng
from draftwood.shapes.base import ExpandLogits, require_budget, within
from draftwood.shapes.widths import Widths
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive


@dataclass(frozen=True)
class Independent:
    """``chains`` chains of ``length`` tokens, each drawn independently from the root (SpecTr).

    Sun et al. 2023, arXiv:2310.15141. Chains that begin alike stay separate nodes; verifiers treat
    them as one place in the sequence.
    """

    name: ClassVar[str] = "independent"
    takes_logits: ClassVar[bool] = True
    chains: int = 4
    length: int = 4
    budget: int | None = None

    def __post_init__(self) -> None:
        positive("chains and length", (self.chains, self.length))
        require_budget(self.budget)

    @property
    def draw(self) -> Draw:
        return "independent"

    @property
    def nodes(self) -> int:
        return self._widths.nodes

    @property
    def depth(self) -> int:
        return self._widths.depth

    @property
    def label(self) -> str:
        return f"independent {self.chains}x{self.length}{within(self.budget)}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Children of each node, level by level."""
        return (self.chains,) + (1,) * (self.length - 1)

    @property
    def _widths(self) -> Widths:
        return Widths(self.widths, "independent", self.budget)

    @property
    def drawn_shape(self) -> DrawnShape | None:
        return self._widths.drawn_shape

    def grow(
        self, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        return self._widths.grow(root, expand, rng, max_draft_len)
