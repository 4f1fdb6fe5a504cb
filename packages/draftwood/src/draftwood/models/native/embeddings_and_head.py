"""Embedding and output head of a ``NativeModel``."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.models.embeddings_and_head import as_saved, require_part
from draftwood.models.model import EmbeddingsAndHeadWeights
from draftwood.models.native.weights import NativeWeights
from draftwood.native.library import library
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads


class NativeEmbeddingsAndHead:
    """Reads and multiplies the weights that the library has.

    A part of the vocabulary costs 16 products for each of its tokens that has no other of its 16
    neighbours in the part.

    Args:
        dtype: of what is handed out.
        head: gives the output head of the Transformers model, as long as that is in use elsewhere.
    """

    def __init__(
        self,
        weights: NativeWeights,
        dtype: torch.dtype,
        head: Callable[[], nn.Module | None],
    ) -> None:
        self.own, self.dtype, self.head = weights, dtype, head

    @property
    def vocab_size(self) -> int:
        return self.own.structure.vocabulary

    def embed(self, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens dim"]:
        require_part(tokens, self.vocab_size)
        embedding = self.own.embedding
        embedded = (
            embedding.outputs(tokens)
            if isinstance(embedding, Matrix)
            else functional.embedding(tokens, embedding)
        )
        return embedded.to(self.dtype) * self.own.embedding_scale

    def logits(
        self,
        hidden: Float[Tensor, "rows dim"],
        tokens: Int[Tensor, " part"] | None = None,
        normed: bool = False,
    ) -> Float[Tensor, "rows part"]:
        tokens = torch.arange(self.vocab_size) if tokens is None else tokens
        require_part(tokens, self.vocab_size)
        rows, part = hidden.float().contiguous(), tokens.to(torch.int64).contiguous()
        logits = torch.empty(len(rows), len(part), dtype=torch.float32)
        library().draftwood_logits(
            self.own.structure,
            rows.data_ptr(),
            len(rows),
            not normed,
            part.data_ptr(),
            len(part),
            logits.data_ptr(),
            threads(),
        )
        return logits

    def weights(self) -> EmbeddingsAndHeadWeights:
        """Give the weights of both; embedding, norms and a tied head are kept.

        Another head is read from the Transformers model while that is in use elsewhere; afterwards
        it is made again of what products read, which takes as long as one copy and as much memory
        as in float32. What was rounded to 8 bits then stays rounded.
        """
        own = self.own
        floats = own.embedding.floats() if isinstance(own.embedding, Matrix) else own.embedding
        embedding = floats.to(self.dtype)
        norm, norm_bias = as_saved(own.norm, self.dtype)
        head = embedding if own.is_tied else self._untied(self.head())
        return EmbeddingsAndHeadWeights(embedding, norm, norm_bias, head, own.head_bias)

    def _untied(self, module: nn.Module | None) -> Tensor:
        weight = None if module is None else module.weight
        if isinstance(weight, Tensor):
            return weight.detach()
        return self.own.lm_head.floats().to(self.dtype)
