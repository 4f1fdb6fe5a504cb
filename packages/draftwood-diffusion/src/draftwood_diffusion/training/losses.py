"""Losses of a conversion: masked places of noisy copies, and the next token of the clean text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_diffusion.training.decoder import StreamDecoder
from draftwood_diffusion.training.noise import Grid, Masked


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of masked places.

    Attributes:
        logits: at each place that is predicted.
        tokens: what stands there.
        weights: of its loss.
    """

    logits: Float[Tensor, "predicted vocab"]
    tokens: Int[Tensor, " predicted"]
    weights: Float[Tensor, " predicted"]


class Objective(Protocol):
    """Loss over predictions of masked places."""

    def __call__(self, predicted: Predicted) -> Tensor: ...


def denoising(predicted: Predicted) -> Tensor:
    """Mean cross-entropy, weighted: a bound on a token's negative log-likelihood, in nats."""
    losses = functional.cross_entropy(predicted.logits, predicted.tokens, reduction="none")
    return (losses * predicted.weights).sum() / predicted.weights.sum().clamp(min=1e-6)


def stream_losses(
    decoder: StreamDecoder,
    batch: Masked,
    grid: Grid,
    is_causal: bool,
    shifted: bool,
    objective: Objective = denoising,
) -> Mapping[str, Tensor]:
    """Losses ``masked`` and ``next`` of one pass over clean texts and both noisy copies.

    Args:
        is_causal: as ``Grid.sight`` takes it. Rows that see later ones of their own block are
            asked for the next token only where it is another block's.
        shifted: whether the row before a place predicts it; a block's first place is then left to
            the clean text.
    """
    states = decoder(batch.tokens, grid.sight(is_causal))
    blocks, texts = grid.blocks(), batch.tokens[:, 0]
    is_first = torch.ones(grid.places, dtype=torch.bool)
    is_first[1:] = blocks[1:] != blocks[:-1]
    asked = grid.maskable() & ~(is_first & shifted)
    places = asked.nonzero()[:, 0]
    copies = 1 + batch.is_masked[:, 1][:, places].long()  # the copy in which it is masked
    rows = torch.arange(len(texts))[:, None]
    found = decoder.logits(states[rows, copies, places - int(shifted)].flatten(0, 1)).float()
    weights = batch.weights[:, places].flatten()
    masked = objective(Predicted(found, texts[:, places].flatten(), weights))
    told = torch.arange(1, grid.places) if is_causal else is_first[1:].nonzero()[:, 0] + 1
    following = decoder.logits(states[:, 0, told - 1].flatten(0, 1)).float()
    return {"masked": masked, "next": functional.cross_entropy(following, texts[:, told].flatten())}
