"""Masks over blocks of a text, and what rows of a clean text and its noisy copies see."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood_diffusion.training.decoder import Sight


@dataclass(frozen=True)
class Grid:
    """Blocks of a text: a beginning that is never masked, and blocks of one length behind it.

    The first place of all, which nothing predicts, is never masked either.

    Attributes:
        places: of the text.
        start: first place of the first block.
        length: of a block; the last one may be shorter.
    """

    places: int
    start: int
    length: int

    def blocks(self) -> Int[Tensor, " places"]:
        """Number of each place's block; -1 in the beginning."""
        return (
            (torch.arange(self.places) - self.start)
            .div(self.length, rounding_mode="floor")
            .clamp(min=-1)
        )

    def maskable(self) -> Bool[Tensor, " places"]:
        """Places that may be masked."""
        return (self.blocks() >= 0) & (torch.arange(self.places) > 0)

    def sight(self, is_causal: bool) -> Sight:
        """Places that rows see: block-causal (Arriola et al. 2025, arXiv:2503.09573).

        A noisy row sees its own block in its copy, and all blocks before it in the clean text.

        Args:
            is_causal: whether rows of the clean text see no later ones of their own block either,
                as next-token prediction needs it.
        """
        blocks, order = self.blocks(), torch.arange(self.places)
        before = blocks[:, None] > blocks
        own = blocks[:, None] == blocks
        clean = order[:, None] >= order if is_causal else before | own
        return Sight(clean, torch.cat([before, own], dim=1))


@dataclass(frozen=True, eq=False)
class Masked:
    """Two noisy copies of texts, and where each place is predicted.

    Attributes:
        tokens: of the clean text and of both copies.
        is_masked: of both copies. A place is predicted in the first one where it is masked there,
            else in the second one.
        weights: of each place's loss; 0 in the beginning.
        is_led: places that are predicted from all that stands before them and nothing behind, as
            next-token models predict them.
    """

    tokens: Int[Tensor, "texts streams places"]
    is_masked: Bool[Tensor, "texts copies places"]
    weights: Float[Tensor, "texts places"]
    is_led: Bool[Tensor, "texts places"]

    @classmethod
    def of(
        cls,
        tokens: Int[Tensor, "texts places"],
        copies: Sequence[Bool[Tensor, "texts places"]],
        weights: Float[Tensor, "texts places"],
        grid: Grid,
        mask_token: int,
    ) -> "Masked":
        """Copies of a text by where they are masked, the first of them or both."""
        shown = [tokens.masked_fill(each, mask_token) for each in copies]
        first = copies[0]
        led = first & _begins_masks(first, grid)
        for second in copies[1:]:
            led |= second & ~first & _begins_masks(second, grid)
        none = [torch.zeros_like(first)] * (2 - len(copies))
        masks = torch.stack([*copies, *none], 1)
        return cls(torch.stack([tokens, *shown], 1), masks, weights, led)


def _begins_masks(
    is_masked: Bool[Tensor, "texts places"], grid: Grid
) -> Bool[Tensor, "texts places"]:
    """Places from which a block is masked to its end, and where none before them is masked."""
    numbers = (grid.blocks() + 1).expand(len(is_masked), -1)
    order = torch.arange(grid.places).expand_as(numbers)
    count = int(numbers.max()) + 1
    first = torch.full((len(is_masked), count), grid.places)
    first.scatter_reduce_(1, numbers, order.masked_fill(~is_masked, grid.places), "amin")
    shown = torch.full_like(first, -1)
    shown.scatter_reduce_(1, numbers, order.masked_fill(is_masked, -1), "amax")
    return (first.gather(1, numbers) == order) & (shown.gather(1, numbers) < order)


def masked(
    tokens: Int[Tensor, "texts places"],
    grid: Grid,
    mask_token: int,
    largest_weight: float,
    chance: torch.Generator,
    share: float | None = None,
    in_order: float = 0.0,
) -> Masked:
    """Mask some places of each block, a number drawn evenly, and the others in the copy.

    A block in order is masked from a place on, as reading from left to right leaves it; in the
    copy it is masked whole.

    A place among m masked ones of n that may be masked weighs n / m, but at most
    ``largest_weight``: the 1 / t of masked diffusion with t = m / n where masks are scattered. In
    blocks in order it makes up for the few masks that a late place is among, and adds up to no
    bound on a text's likelihood.

    Args:
        share: of each block's places that are masked in the first copy; None draws a number.
        in_order: probability of a block in order.
    """
    texts, places = tokens.shape
    blocks = grid.blocks()
    scores = torch.rand(texts, places, generator=chance)
    count = int(blocks.max()) + 2
    numbers = (blocks + 1).expand(texts, -1)
    ordered = torch.zeros(texts, places, dtype=torch.bool)
    if in_order:
        ordered = (torch.rand(texts, count, generator=chance) < in_order).gather(1, numbers)
        within = (torch.arange(places) - grid.start) % grid.length
        scores = torch.where(ordered, 1 - (within + 1) / (grid.length + 1), scores)
    maskable = grid.maskable()
    sizes = torch.zeros(texts, count)
    sizes.scatter_add_(1, numbers, maskable.float().expand(texts, -1))
    drawn = (torch.rand(texts, count, generator=chance) * (sizes + 1)).floor()
    if share is not None:
        drawn = (share * sizes).round()
    ranks = _ranks(scores.masked_fill(~maskable, 1.0), grid)  # the first place is the last to mask
    first = (ranks < drawn.gather(1, numbers)) & maskable
    second = (~first | ordered) & maskable
    sizes, drawn = sizes.gather(1, numbers), drawn.gather(1, numbers)
    others = torch.where(ordered, sizes, sizes - drawn)
    weights = (sizes / torch.where(first, drawn, others)).clamp(max=largest_weight)
    weights = torch.where(maskable, weights, torch.zeros(()))
    return Masked.of(tokens, (first, second), weights, grid, mask_token)


def _ranks(scores: Float[Tensor, "texts places"], grid: Grid) -> Int[Tensor, "texts places"]:
    """Rank of each place's score, at most 1, within its block, from 0 on."""
    order = (grid.blocks().float() * 2 + scores).argsort(dim=1)
    firsts = (torch.arange(grid.places) - grid.start) % grid.length
    firsts[: grid.start] = torch.arange(grid.start)
    ranks = torch.empty_like(order)
    return ranks.scatter_(1, order, firsts.expand_as(order).contiguous())
