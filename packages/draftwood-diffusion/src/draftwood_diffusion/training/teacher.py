"""The model that wrote the texts, asked for its distribution of each next token."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood_diffusion.training.decoder import DecoderSizes, StreamDecoder
from draftwood_diffusion.training.folder import BY_TOKEN, SourceModel
from draftwood_diffusion.training.noise import Grid


class Teacher:
    """A next-token model over the vocabulary of the one that learns from it (Hinton et al. 2015,
    arXiv:1503.02531).

    It knows the first text of a row. Texts behind were written without those before them.

    Args:
        numbers: of its tokens in that vocabulary, -1 for those that it lacks.
        size: of that vocabulary.
        is_reverse: whether learners follow the reverse divergence: they leave out what they cannot
            say as it would, rather than say all that it might (Gu et al. 2023, arXiv:2306.08543).
    """

    def __init__(
        self,
        source: SourceModel,
        numbers: Int[np.ndarray, " vocab"],
        size: int,
        is_reverse: bool = False,
    ) -> None:
        self.is_reverse = is_reverse
        told: Mapping[str, Any] = {**source.told, "vocab_size": size}
        self.decoder = StreamDecoder(DecoderSizes.of(told)).eval()
        theirs = np.zeros(size, np.int64)
        kept = np.flatnonzero(numbers >= 0)
        theirs[numbers[kept]] = kept
        self.lacks = torch.ones(size, dtype=torch.bool)
        self.lacks[torch.from_numpy(numbers[kept])] = False
        weights = dict(source.weights)
        weights |= {name: weights[name][theirs] for name in BY_TOKEN if name in weights}
        self.decoder.take({name: torch.from_numpy(np.array(e)) for name, e in weights.items()})

    def knows(self, tokens: Int[Tensor, "texts places"]) -> Bool[Tensor, "texts places"]:
        """Find the places of the first text of each row; what a row begins with begins texts.

        Where that ends texts too, the end of the first one counts as the next one's beginning.
        """
        return (tokens == tokens[:, :1]).long().cumsum(1) == 1

    @torch.no_grad()
    def states(self, tokens: Int[Tensor, "texts places"]) -> Float[Tensor, "texts places dim"]:
        """States of rows that see the places up to their own."""
        grid = Grid(tokens.shape[1], 0, 1)
        return self.decoder(tokens[:, None], grid.sight(True))[:, 0]

    @torch.no_grad()
    def shares(self, states: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows vocab"]:
        """Probability of each next token; 0 for tokens that the model lacks."""
        logits = self.decoder.logits(states).float()
        return logits.masked_fill_(self.lacks, float("-inf")).softmax(-1)
