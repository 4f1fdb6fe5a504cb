"""Settings of draft LMs: small decoders of the target's shape that read tokens alone."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes


@dataclass(frozen=True)
class LmConfig:
    """Settings of a draft LM.

    Attributes:
        sizes: of its layers.
        layers: decoder layers.
        window: newest rows that a row sees; None for all.
        acceptance: blocks of a head that predicts how likely a token is accepted; 0 for none.
    """

    kind: ClassVar[str] = "lm"
    sizes: HeadSizes
    layers: int = 1
    window: int | None = None
    acceptance: int = 0

    @property
    def reads(self) -> tuple[int, ...]:
        """No layers: it reads none of the target's states."""
        return ()

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"a draft LM has at least one layer, got {self.layers}")

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``LmHead``."""
        dim, found = self.sizes.hidden, TensorShapes(self.sizes)
        found.matrix("proj", dim, dim)
        for number in range(self.layers):
            found.layer(f"layers.{number}.")
        found.norm("norm")
        for number in range(self.acceptance):
            found.matrix(f"acceptance.blocks.{number}", dim, dim)
            found[f"acceptance.blocks.{number}.bias"] = (dim,)
        if self.acceptance:
            found.matrix("acceptance.out", 1, dim)
            found["acceptance.out.bias"] = (1,)
        return found
