"""Losses of a conversion: masked places of noisy copies, and the next token of the clean text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_diffusion.training.decoder import StreamDecoder
from draftwood_diffusion.training.noise import Grid, Masked
from draftwood_diffusion.training.teacher import Teacher


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of masked places.

    Attributes:
        logits: at each place that is predicted.
        tokens: what stands there.
        weights: of its loss.
        led: whether the teacher knows the distribution there; None without a teacher.
        taught: the distributions that it knows.
    """

    logits: Float[Tensor, "predicted vocab"]
    tokens: Int[Tensor, " predicted"]
    weights: Float[Tensor, " predicted"]
    led: Bool[Tensor, " predicted"] | None = None
    taught: Float[Tensor, "led vocab"] | None = None

    def losses(self) -> Float[Tensor, " predicted"]:
        """Cross-entropy with the token, or with the teacher's distribution where it is known."""
        found = functional.cross_entropy(self.logits, self.tokens, reduction="none")
        if self.led is None or self.taught is None:
            return found
        softly = functional.cross_entropy(self.logits[self.led], self.taught, reduction="none")
        return found.masked_scatter(self.led, softly)


class Objective(Protocol):
    """Loss over predictions of masked places."""

    def __call__(self, predicted: Predicted) -> Tensor: ...


def denoising(predicted: Predicted) -> Tensor:
    """Mean cross-entropy, weighted: a bound on a token's negative log-likelihood, in nats."""
    losses = predicted.losses()
    return (losses * predicted.weights).sum() / predicted.weights.sum().clamp(min=1e-6)


def stream_losses(
    decoder: StreamDecoder,
    batch: Masked,
    grid: Grid,
    is_causal: bool,
    shifted: bool,
    objective: Objective = denoising,
    teacher: Teacher | None = None,
) -> Mapping[str, Tensor]:
    """Losses ``masked`` and ``next`` of one pass over clean texts and both noisy copies.

    Args:
        is_causal: as ``Grid.sight`` takes it. Rows that see later ones of their own block are
            asked for the next token only where it is another block's.
        shifted: whether the row before a place predicts it; a block's first place is then left to
            the clean text.
        teacher: whose distributions of next tokens take the place of tokens, wherever it knows
            all that a prediction is made from: in a clean text, and at a copy's places led.
    """
    states = decoder(batch.tokens, grid.sight(is_causal))
    blocks, texts = grid.blocks(), batch.tokens[:, 0]
    is_first = torch.ones(grid.places, dtype=torch.bool)
    is_first[1:] = blocks[1:] != blocks[:-1]
    asked = grid.maskable() & ~(is_first & shifted)
    places = asked.nonzero()[:, 0]
    first, second = batch.is_masked[:, :2, places].unbind(1)
    copies = 1 + (second & ~first).long()  # the copy that is asked for it
    rows = torch.arange(len(texts))[:, None]
    found = decoder.logits(states[rows, copies, places - int(shifted)].flatten(0, 1)).float()
    weights = batch.weights[:, places].flatten()
    asked_of = Predicted(found, texts[:, places].flatten(), weights)
    told = torch.arange(1, grid.places) if is_causal else is_first[1:].nonzero()[:, 0] + 1
    following = decoder.logits(states[:, 0, told - 1].flatten(0, 1)).float()
    wanted = texts[:, told].flatten()
    if teacher is not None:
        known = teacher.states(texts)
        led = batch.is_led[:, places]
        row, column = led.nonzero(as_tuple=True)
        taught = teacher.shares(known[row, places[column] - 1])
        asked_of = replace(asked_of, led=led.flatten(), taught=taught)
        wanted = teacher.shares(known[:, told - 1].flatten(0, 1))
    return {"masked": objective(asked_of), "next": functional.cross_entropy(following, wanted)}
