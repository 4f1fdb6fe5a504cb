"""Second stage of a conversion: certainty at once, where predictions are right (dParallel)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftwood_diffusion.training.losses import Predicted


@dataclass(frozen=True)
class Certainty:
    """Cross-entropy, and the entropy of sharpened predictions that are right already.

    Chen et al. 2025, arXiv:2509.26488. Wrong predictions are left as unsure as they are: an
    entropy over all places would make the model sure of its mistakes. Half of a block is masked,
    and the other half in a second copy. Later blocks are hidden from a block in every row of a
    batch, as no row sees them; the published code masks them in the last row alone. Differs from
    the paper where a teacher knows the distribution: that is learnt, and not made surer.

    Attributes:
        weight: of the entropy.
        temperature: that sharpens the predictions.
    """

    weight: float = 2.0
    temperature: float = 0.5

    def __call__(self, predicted: Predicted) -> Tensor:
        is_right = predicted.logits.detach().argmax(-1) == predicted.tokens
        is_right &= ~predicted.led
        return predicted.losses().mean() + self.weight * self._entropies(predicted.logits[is_right])

    def _entropies(self, logits: Tensor) -> Tensor:
        """Mean entropy of sharpened predictions; 0 where there are none."""
        logs = (logits / self.temperature).log_softmax(-1)
        entropies = torch.special.entr(logs.exp()).sum(-1)
        return entropies.sum() / max(len(logits), 1)
