"""Embedding and output head of a ``NativeModel``."""

from collections.abc import Callable
from typing import Any

import numpy as np

from draftwood.arrays import Float, FloatType, address_of, as_array, as_floats, like, rounded
from draftwood.models.model import EmbeddingsAndHeadWeights
from draftwood.models.native.weights import NativeWeights
from draftwood.models.requirements import require_part
from draftwood.native.library import library
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads


class NativeEmbeddingsAndHead:
    """Reads and multiplies the weights that the library has, for arrays and for tensors.

    A part of the vocabulary costs 16 products for each of its tokens that has no other of its 16
    neighbours in the part.

    Args:
        dtype: that what is handed out is rounded to.
        head: gives the output head of the Transformers model, as long as that is in use elsewhere.
    """

    def __init__(self, weights: NativeWeights, dtype: FloatType, head: Callable[[], Any]) -> None:
        self.own, self.head = weights, head
        self.dtype: FloatType = dtype

    @property
    def vocab_size(self) -> int:
        return self.own.structure.vocabulary

    def embed(self, tokens: Any) -> Any:
        chosen = as_array(tokens)
        require_part(chosen, self.vocab_size)
        embedding = self.own.embedding
        found = (
            embedding.outputs(chosen)
            if isinstance(embedding, Matrix)
            else as_floats(embedding[chosen])
        )
        scale = np.float32(self.own.embedding_scale)
        return like(rounded(rounded(found, self.dtype) * scale, self.dtype), tokens)

    def logits(self, hidden: Any, tokens: Any = None, normed: bool = False) -> Any:
        part = np.arange(self.vocab_size) if tokens is None else as_array(tokens)
        require_part(part, self.vocab_size)
        rows = np.ascontiguousarray(as_array(hidden), np.float32)
        part = np.ascontiguousarray(part, np.int64)
        logits = np.empty((len(rows), len(part)), np.float32)
        library().draftwood_logits(
            self.own.structure,
            address_of(rows),
            len(rows),
            not normed,
            address_of(part),
            len(part),
            address_of(logits),
            threads(),
        )
        return like(logits, hidden)

    def weights(self) -> EmbeddingsAndHeadWeights:
        """Give the weights of both; embedding, norms and a tied head are kept.

        Another head is read from the Transformers model while that is in use elsewhere; afterwards
        it is made again of what products read, which takes as long as one copy and as much memory
        as in float32. What was rounded to 8 bits then stays rounded.
        """
        own = self.own
        floats = own.embedding.floats() if isinstance(own.embedding, Matrix) else own.embedding
        embedding = self._handed_out(floats)
        head = embedding if own.is_tied else self._untied(self.head())
        norm = self._handed_out(own.norm.saved)
        return EmbeddingsAndHeadWeights(embedding, norm, head, as_array(own.head_bias))

    def _untied(self, module: Any) -> Float[np.ndarray, "vocab dim"]:
        weight = getattr(module, "weight", None)
        return self._handed_out(self.own.lm_head.floats() if weight is None else weight)

    def _handed_out(self, numbers: Any) -> Any:
        return None if numbers is None else rounded(as_floats(numbers), self.dtype)
