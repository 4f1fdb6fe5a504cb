"""Stochastic Beam Search: whole drafted sequences without replacement."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from draftwood.native.drawn_trees import DrawnShape
from draftwood.rng import Rng
from draftwood.shapes.base import (
    ExpandLogits,
    Picked,
    RowsAfter,
    grow_by_levels,
    require_budget,
    within,
)
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive

if TYPE_CHECKING:
    from draftwood.native.logit_rows import Children

LEAST = 1e-300  # below it a time counts as this much


@dataclass(frozen=True)
class StochasticBeam:
    """Keep at each level the ``width`` largest perturbed log-probabilities: the tree of RSD-S.

    Jeon et al. 2024, arXiv:2402.14160; Stochastic Beam Search by Kool et al. 2019,
    arXiv:1903.06059. A beam may end with 0 to ``width`` children; beams that lose stay in the tree
    as leaves. Siblings have falling perturbed values, which is their drawing order, so recursive
    rejection stays exact although their number is random.

    Differs from the paper: perturbed values are drawn from the largest downwards, each a Gumbel
    truncated at the one before, instead of one for every vocabulary entry that is then shifted to
    its parent's maximum. The distribution is the same and a beam needs ``width`` random numbers
    instead of two per vocabulary entry.

    Args:
        width: beams kept at each level.
        depth: levels; a budget that is spent earlier lowers it.
        budget: most nodes to draft; None for all.
    """

    name: ClassVar[str] = "stochastic-beam"
    takes_logits: ClassVar[bool] = True
    width: int = 4
    depth: int = 4
    budget: int | None = None

    def __post_init__(self) -> None:
        positive("width and depth", (self.width, self.depth))
        require_budget(self.budget)
        if self.budget is not None:
            object.__setattr__(self, "depth", min(self.depth, -(-self.budget // self.width)))

    @property
    def draw(self) -> Draw:
        return "distinct"

    @property
    def nodes(self) -> int:
        every = self.width * self.depth
        return every if self.budget is None else min(every, self.budget)

    @property
    def label(self) -> str:
        return f"stochastic-beam {self.width}x{self.depth}{within(self.budget)}"

    @property
    def drawn_shape(self) -> DrawnShape:
        return DrawnShape((self.width,) * self.depth, self.nodes, beam=True)

    def grow(
        self, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        beams = Beams(self.width, rng)

        def pick(level: int, rows: RowsAfter) -> Picked:
            return beams(rows)

        return grow_by_levels(
            root, expand, min(self.depth, max_draft_len), pick, "distinct", self.budget
        )


class Beams:
    """Beams of one tree.

    Attributes:
        log_prob: of each beam under the drafter.
        perturbed: value of each beam.
    """

    def __init__(self, width: int, rng: Rng) -> None:
        self.width, self.rng = width, rng
        self.log_prob, self.perturbed = [0.0], [0.0]

    def __call__(self, rows: RowsAfter) -> Picked:
        """The next level: its tokens, and each parent's position."""
        width = min(self.width, rows.shape[-1])
        tokens, chances = self.children(rows, width)
        delays = self.rng.exponential(len(rows), width).tolist() if self.rng.noise else None
        found: list[tuple[float, float, int, int]] = []
        for beam, (log_prob, own) in enumerate(zip(self.log_prob, chances, strict=True)):
            sums = [log_prob + log(chance) if chance > 0.0 else -inf for chance in own]
            values = sums
            if delays is not None:
                values = falling_values(log_prob, self.perturbed[beam], own, delays[beam])
            found += zip(values, sums, tokens[beam], [beam] * width, strict=True)
        best = sorted(found, key=itemgetter(0), reverse=True)[: self.width]
        self.perturbed, self.log_prob = [each[0] for each in best], [each[1] for each in best]
        return [each[2] for each in best], [each[3] for each in best]

    def children(self, rows: RowsAfter, width: int) -> "Children":
        """Draw so many different tokens after each beam; where a row has fewer, some come again."""
        return self.rng.draw_children(rows, width)


def falling_values(
    log_prob: float, perturbed: float, chances: Sequence[float], delays: Sequence[float]
) -> list[float]:
    """Gumbel-perturbed log-probabilities of a beam's children, which fall in drawing order.

    The children were drawn without replacement. The largest value equals the beam's own. Each next
    one is Gumbel with location log_prob + log(mass not drawn yet), truncated at the one before:
    exp(-v') = exp(-v) + E exp(-location) with E standard exponential, so all are one cumulative
    sum, here of exp(log_prob - v). A child without mass gets minus infinity.

    Args:
        log_prob: of the beam under the drafter.
        perturbed: value of the beam.
        chances: of its children, in drawing order.
        delays: standard exponential numbers.
    """
    passed = exp(log_prob - perturbed) if log_prob > -inf else inf
    values, left = [], 1.0
    for place, (chance, delay) in enumerate(zip(chances, delays, strict=True)):
        if place:
            passed += delay / max(left, chance, LEAST)
        left -= chance
        # of a long text exp leaves nothing, so the first one's value is not taken from it
        value = log_prob - log(max(passed, LEAST)) if place else perturbed
        values.append(value if chance > 0.0 and passed < inf else -inf)
    return values
