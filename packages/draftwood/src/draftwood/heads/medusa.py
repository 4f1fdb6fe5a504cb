"""Settings of Medusa and Hydra heads: one for each next place, all reading one state."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes


@dataclass(frozen=True)
class MedusaConfig:
    """Settings of a set of Medusa or Hydra heads.

    Attributes:
        sizes: of the target; only the entries of a hidden state and the norms' epsilon matter.
        heads: places that are drafted, one head for each.
        reads: the target's layer whose input they read; the number after the last one means the
            state after the final norm.
        sees_drafted: whether a head also reads the root of the draft tree and the tokens that were
            drafted behind it, as Hydra's do.
        reads_root: whether heads read the root at least, as other drafters do; Medusa's do not.
    """

    kind: ClassVar[str] = "medusa"
    sizes: HeadSizes
    heads: int = 4
    reads: tuple[int, ...] = (0,)
    sees_drafted: bool = False
    reads_root: bool = False

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ValueError(f"a drafter has at least one head, got {self.heads}")
        if len(self.reads) != 1:
            raise ValueError(f"these heads read one layer of their target, got {list(self.reads)}")

    def tokens(self, level: int) -> int:
        """Number of tokens, from the root on, that the head of a level reads."""
        return level + 1 if self.sees_drafted else int(self.reads_root)

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``MedusaHead``."""
        dim, found = self.sizes.hidden, TensorShapes(self.sizes)
        for level in range(self.heads):
            found.matrix(f"blocks.{level}", dim, dim)
            if self.tokens(0):
                found.matrix(f"projections.{level}", dim, (1 + self.tokens(level)) * dim)
        if self.tokens(0):
            found.norm("token_norm")
        return found
