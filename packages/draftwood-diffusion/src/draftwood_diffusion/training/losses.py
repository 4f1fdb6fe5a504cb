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

LEAST_SHARE = 1e-9
"""Probability of a token that a teacher rules out, which a reverse divergence divides by."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of some places.

    Attributes:
        logits: at each place that is predicted.
        tokens: what stands there.
        weights: of its loss.
        led: whether the teacher knows the distribution there.
        taught: the distributions that it knows.
        is_reverse: whether the divergence from them weighs what is predicted, not what is taught.
    """

    logits: Float[Tensor, "predicted vocab"]
    tokens: Int[Tensor, " predicted"]
    weights: Float[Tensor, " predicted"]
    led: Bool[Tensor, " predicted"]
    taught: Float[Tensor, "led vocab"]
    is_reverse: bool = False

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "predicted vocab"],
        tokens: Int[Tensor, " predicted"],
        weights: Float[Tensor, " predicted"] | None = None,
    ) -> "Predicted":
        """Predictions without a teacher, of one weight unless others are told."""
        none = torch.zeros_like(tokens, dtype=torch.bool)
        weights = torch.ones(len(tokens)) if weights is None else weights
        return cls(logits, tokens, weights, none, logits.new_zeros(0, logits.shape[-1]))

    def losses(self) -> Float[Tensor, " predicted"]:
        """Cross-entropy with the token, or divergence from what is taught, in nats."""
        told, logits = ~self.led, self.logits[self.led]
        found = torch.empty_like(self.weights)
        of_tokens = functional.cross_entropy(self.logits[told], self.tokens[told], reduction="none")
        if self.is_reverse:
            logs = logits.log_softmax(-1)
            theirs = self.taught.clamp(min=LEAST_SHARE).log()
            taught = (logs.exp() * (logs - theirs)).sum(-1)
        else:
            taught = functional.cross_entropy(logits, self.taught, reduction="none")
        return found.masked_scatter(told, of_tokens).masked_scatter(self.led, taught)


class Objective(Protocol):
    """Loss over predictions of masked places."""

    def __call__(self, predicted: Predicted) -> Tensor: ...


def denoising(predicted: Predicted) -> Tensor:
    """Mean cross-entropy, weighted. Where masks are scattered and weigh 1 / t, it bounds a token's
    negative log-likelihood, in nats.
    """
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
    asked = (grid.maskable() & ~(is_first & shifted)).nonzero()[:, 0]
    first, second = batch.is_masked[:, :, asked].unbind(1)
    copies = 1 + (second & ~first).long()  # the copy that is asked for it
    rows = torch.arange(len(texts))[:, None]
    told = torch.arange(1, grid.places) if is_causal else is_first[1:].nonzero()[:, 0] + 1
    found = {
        "masked": (asked, states[rows, copies, asked - int(shifted)], batch.is_led),
        "next": (told, states[:, 0, told - 1], torch.ones_like(batch.is_led)),
    }
    predicted = dict[str, Predicted]()
    for name, (places, own, _) in found.items():
        logits = decoder.logits(own.flatten(0, 1)).float()
        weights = batch.weights[:, places].flatten() if name == "masked" else None
        predicted[name] = Predicted.of(logits, texts[:, places].flatten(), weights)
    if teacher is not None:
        known, knows = teacher.states(texts), teacher.knows(texts)
        for name, (places, _, is_led) in found.items():
            led = (is_led & knows)[:, places].flatten()
            taught = teacher.shares(known[:, places - 1].flatten(0, 1)[led])
            predicted[name] = replace(
                predicted[name], led=led, taught=taught, is_reverse=teacher.is_reverse
            )
    return {"masked": objective(predicted["masked"]), "next": denoising(predicted["next"])}
