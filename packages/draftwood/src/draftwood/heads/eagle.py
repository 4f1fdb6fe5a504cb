"""Settings of EAGLE heads, which continue the target's own hidden states."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes

NEWEST = 256
"""Rows that a head takes in at once.

Of a longer prompt it reads the newest alone: older ones do not change its tokens per pass, and each
takes its time. With 32 rows they fall by 2 to 6 % behind 200 to 1,500 tokens (SmolLM2-135M).
"""


@dataclass(frozen=True)
class EagleConfig:
    """Settings of an EAGLE head.

    Attributes:
        sizes: of its layers.
        layers: decoder layers; the first reads token and state side by side.
        reads: the target's layers whose inputs it reads, in order; the number after the last one
            means the state after the final norm.
        norms_features: whether each state is normed before they are joined (EAGLE-3.1).
        feeds_normed: whether a drafted state is fed back after the head's norm (EAGLE-3.1).
        norm_before_residual: whether the residual stream starts with the normed state.
        window: newest rows that a row sees; None for all.
        feature_sampling: whether the token chooses what is read of the state, in many dimensions
            (FSPAD); else the first layer's attention reads both side by side.
        partial_alignment: whether the last layer gives two states, one for the output head and one
            that is fed back (FSPAD).
        own_head: rows of an output head of its own, one for each token of the draft vocabulary, as
            public heads have it; 0 reads the target's.
    """

    kind: ClassVar[str] = "eagle"
    sizes: HeadSizes
    layers: int = 1
    reads: tuple[int, ...] = (0,)
    norms_features: bool = True
    feeds_normed: bool = True
    norm_before_residual: bool = False
    window: int | None = None
    feature_sampling: bool = False
    partial_alignment: bool = False
    own_head: int = 0

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"a head has at least one layer, got {self.layers}")
        if not self.reads:
            raise ValueError("a head reads at least one layer of its target")
        if self.partial_alignment and self.feeds_normed:
            raise ValueError("with partial_alignment a state goes back in as it is, not normed")

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``EagleHead``."""
        sizes, count, found = self.sizes, len(self.reads), TensorShapes(self.sizes)
        found.matrix("fc", sizes.hidden, count * sizes.hidden)
        if self.norms_features:
            found.norm(*(f"fc_norm.{number}" for number in range(count)))
        if self.feature_sampling:
            found.matrix("sampling.joined", sizes.hidden, 2 * sizes.hidden)
            found.norm("sampling.norm")
            found.mlp("sampling.mlp")
        for number in range(self.layers):
            is_first = number == 0 and not self.feature_sampling
            splits = self.partial_alignment and number == self.layers - 1
            wide = (1 + is_first) * sizes.hidden
            found.layer(f"layers.{number}.", wide, copies=1 + splits)
            if is_first:
                found.norm("layers.0.hidden_norm")
        found.norm("norm")
        if self.own_head:
            found.matrix("lm_head", self.own_head, sizes.hidden)
        return found
