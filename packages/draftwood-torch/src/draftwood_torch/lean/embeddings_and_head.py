"""Embedding and output head of a ``LeanModel``."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood.models.decoder import Decoder, Projection
from draftwood.models.model import EmbeddingsAndHeadWeights
from draftwood.models.requirements import require_part
from draftwood_torch.lean.linear import ToLinear, bias_of
from draftwood_torch.lean.rows import normed
from draftwood_torch.tensors import as_tensor


class LeanEmbeddingsAndHead:
    """The first and the last step of a forward pass; other callers may take either by itself.

    Args:
        dtype: of the model, which its weights are handed out in.
        linear: makes the output head.
    """

    def __init__(
        self, decoder: Decoder, dtype: torch.dtype, device: torch.device, linear: ToLinear
    ) -> None:
        self.decoder, self.dtype, self.device = decoder, dtype, device
        self.embedding = Projection(decoder.embedding, None).floats
        self.lm_head, self.vocab_size = linear(decoder.lm_head), len(decoder.lm_head.floats)

    def stream(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows hidden"]:
        """Embed tokens as the first layer reads them, in float32."""
        return self.stream_of(self._embedded(tokens))

    def stream_of(self, embedded: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        """Bring embedded tokens, or vectors in their place, to what the first layer reads."""
        scale = self.decoder.scales.inputs
        return (embedded if scale == 1.0 else embedded * scale).float()

    def normed(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        """Put what the last layer gave through the final norm."""
        return normed(rows, self.decoder.norm, self.decoder.sizes)

    def embed(self, tokens: Any) -> Float[Tensor, "tokens dim"]:
        tokens = as_tensor(tokens)
        require_part(tokens, self.vocab_size)
        return self._embedded(tokens.to(self.device))

    @torch.no_grad()
    def logits(
        self,
        hidden: Any,
        tokens: Any = None,
        normed: bool = False,
    ) -> Float[Tensor, "rows part"]:
        rows = as_tensor(hidden).to(self.device).float()
        rows = rows if normed else self.normed(rows)
        if tokens is None:
            return self._bounded(self.lm_head(rows).float())
        tokens = as_tensor(tokens)
        require_part(tokens, self.vocab_size)
        head, tokens = self.decoder.lm_head, tokens.to(self.device)
        weight, bias = head.floats[tokens], bias_of(head)
        bias = None if bias is None else bias[tokens]
        return self._bounded(functional.linear(rows.to(weight.dtype), weight, bias).float())

    def weights(self) -> EmbeddingsAndHeadWeights:
        """Give the weights themselves, which the model keeps anyway."""
        head, norm = self.decoder.lm_head, self.decoder.norm
        return EmbeddingsAndHeadWeights(
            self.embedding, norm.saved.to(self.dtype), head.floats, bias_of(head)
        )

    def _embedded(self, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens hidden"]:
        """Embed tokens, in the model's type."""
        embedded, scale = (
            functional.embedding(tokens, self.embedding),
            self.decoder.scales.embedding,
        )
        return embedded if scale == 1.0 else embedded * scale

    def _bounded(self, logits: Float[Tensor, "rows part"]) -> Float[Tensor, "rows part"]:
        """Scale and cap products with the output head, where the model does that."""
        scale, cap = self.decoder.scales.logits, self.decoder.scales.logit_cap
        logits = logits if scale == 1.0 else logits * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)
