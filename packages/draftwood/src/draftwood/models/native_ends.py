"""Embedding and output head of a ``NativeModel``."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.models.ends import as_saved, require_part
from draftwood.models.model import EndWeights
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads

if TYPE_CHECKING:
    from draftwood.models.native import NativeModel


class NativeEnds:
    """The ends of a ``NativeModel``.

    A part of the vocabulary costs 16 products for each of its tokens that has no other of its 16
    neighbours in the part.
    """

    def __init__(self, model: "NativeModel") -> None:
        self.model = model

    def embed(self, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens dim"]:
        require_part(tokens, self.model.vocab_size)
        embedding = self.model.embedding
        embedded = (
            embedding.outputs(tokens)
            if isinstance(embedding, Matrix)
            else functional.embedding(tokens, embedding)
        )
        return embedded.to(self.model.dtype) * self.model.embedding_scale

    def logits(
        self,
        hidden: Float[Tensor, "rows dim"],
        tokens: Int[Tensor, " part"] | None = None,
        normed: bool = False,
    ) -> Float[Tensor, "rows part"]:
        model = self.model
        tokens = torch.arange(model.vocab_size) if tokens is None else tokens
        require_part(tokens, model.vocab_size)
        rows, part = hidden.float().contiguous(), tokens.to(torch.int64).contiguous()
        logits = torch.empty(len(rows), len(part), dtype=torch.float32)
        model.library.draftwood_logits(
            model.structure,
            rows.data_ptr(),
            len(rows),
            not normed,
            part.data_ptr(),
            len(part),
            logits.data_ptr(),
            threads(),
        )
        return logits

    def weights(self) -> EndWeights:
        """The weights of both ends; embedding, norms and a tied head are kept.

        Another head is read from the Transformers model while that is in use elsewhere; afterwards
        it is made again of what products read, which takes as long as one copy and as much memory
        as in float32. What was rounded to 8 bits then stays rounded.
        """
        model = self.model
        own = model.embedding
        embedding = (own.floats() if isinstance(own, Matrix) else own).to(model.dtype)
        norm, norm_bias = as_saved(model.norms, model.dtype)
        head = embedding if model.is_tied else self._untied(model.head_module())
        return EndWeights(embedding, norm, norm_bias, head, model.head_bias)

    def _untied(self, module: nn.Module | None) -> Tensor:
        weight = None if module is None else module.weight
        if isinstance(weight, Tensor):
            return weight.detach()
        return self.model.lm_head.floats().to(self.model.dtype)
