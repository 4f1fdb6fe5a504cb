"""Stochastic Beam Search: whole drafted sequences without replacement."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.rng import Rng
from draftwood.shapes.base import grow_by_levels, within
from draftwood.shapes.shape import Expand
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive


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
    width: int = 4
    depth: int = 4
    budget: int | None = None

    def __post_init__(self) -> None:
        positive("width and depth", (self.width, self.depth))
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

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        log_prob = torch.zeros(1, dtype=torch.float64)  # of each beam under the drafter
        perturbed = torch.zeros(1, dtype=torch.float64)

        def pick(level: int, probs: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal log_prob, perturbed
            width = min(self.width, probs.shape[-1])
            drawn = rng.draw_distinct(probs, width)
            chance = probs.gather(-1, drawn).double()
            log_prob, perturbed = (
                beams.to(probs.device, non_blocking=True) for beams in (log_prob, perturbed)
            )
            child_log_prob = log_prob[:, None] + chance.log()
            values = (
                perturbed_values(log_prob, perturbed, chance, rng) if rng.noise else child_log_prob
            )
            perturbed, best = values.flatten().topk(min(self.width, values.numel()))
            log_prob = child_log_prob.take(best)
            return drawn.take(best), best // width

        return grow_by_levels(
            root, expand, min(self.depth, max_draft_len), pick, "distinct", self.budget
        )


def perturbed_values(
    log_prob: Float[Tensor, " beams"],
    perturbed: Float[Tensor, " beams"],
    chance: Float[Tensor, "beams width"],
    rng: Rng,
) -> Float[Tensor, "beams width"]:
    """Gumbel-perturbed log-probabilities of children drawn without replacement, in falling order.

    The largest among a beam's children equals the beam's own value. Each next one is Gumbel with
    location log_prob + log(mass not drawn yet), truncated at the one before: exp(-v') = exp(-v) + E
    exp(-location) with E standard exponential, so all are one cumulative sum, here of exp(log_prob
    - v). A child without mass gets minus infinity.
    """
    left = (1.0 - chance.cumsum(-1) + chance).maximum(chance)  # before each draw
    delays = rng.exponential(*chance.shape).to(chance.device, non_blocking=True) / left
    first = (log_prob - perturbed).exp()  # not a number where the beam has no mass
    delays[:, 0] = first.nan_to_num(torch.inf, posinf=torch.inf)
    return log_prob[:, None] - delays.cumsum(-1).masked_fill(chance == 0.0, torch.inf).log()
