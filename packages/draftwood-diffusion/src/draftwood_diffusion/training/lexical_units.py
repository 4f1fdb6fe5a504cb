"""Placeholders for runs of tokens that the model is sure of (lexical unit decoding)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_diffusion.training.decoder import StreamDecoder
from draftwood_diffusion.training.noise import Grid, Masked


@dataclass(frozen=True)
class LexicalUnits:
    """Masks that stand behind a beginning, and count as far as a unit goes (LUD).

    Sun et al. 2024, arXiv:2405.15208. A unit is a token and those behind it that the model, as it
    was before, gave at least this probability. Differs from the paper: placeholders are mask tokens
    that fill the block, and each block of a text has a beginning of its own.

    Attributes:
        probability: of each token of a unit but the first.
        longest: tokens of a unit.
    """

    probability: float = 0.9
    longest: int = 8

    def masked(
        self,
        tokens: Int[Tensor, "texts places"],
        likely: Float[Tensor, "texts places"],
        grid: Grid,
        mask_token: int,
        chance: torch.Generator,
    ) -> Masked:
        """Mask each block from a place on that is drawn; places of the unit there weigh 1.

        Args:
            likely: probability of each token by the model as it was before.
        """
        texts, places = tokens.shape
        numbers, order = grid.blocks(), torch.arange(places)
        count = int(numbers.max()) + 2
        drawn = torch.randint(grid.length, (texts, count), generator=chance)
        first = drawn.gather(1, (numbers + 1).expand(texts, -1))
        first = (first + grid.start + grid.length * numbers).clamp(min=1)  # place of the text
        is_masked = (order >= first) & grid.maskable()
        sure = (likely >= self.probability) | (order == first)
        begins = torch.where(is_masked, first, order)
        run = torch.cumsum((~sure & is_masked).long(), 1)
        before = run.gather(1, begins.clamp(0, places - 1))
        is_unit = is_masked & (run == before) & (order - begins < self.longest)
        return Masked.of(tokens, (is_masked,), is_unit.float(), grid, mask_token)


@torch.no_grad()
def probabilities(
    decoder: StreamDecoder, tokens: Int[Tensor, "texts places"]
) -> Float[Tensor, "texts places"]:
    """Probability of each token behind those before it; 1 for the first."""
    grid = Grid(tokens.shape[1], 0, 1)
    states = decoder(tokens[:, None], grid.sight(True))[:, 0, :-1]
    logits = decoder.logits(states).float()
    losses = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return torch.cat([torch.ones(len(tokens), 1), (-losses).exp()], dim=1)
