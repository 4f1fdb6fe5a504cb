"""A few bits that tell a model from all others, also from those of the same sizes."""

import hashlib
from contextlib import closing
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from draftwood.models.model import Model, ModelSession

PROBED = 24
"""Tokens of the text that tells models apart."""


@dataclass(frozen=True)
class Fingerprint:
    """Tells a model from others by what it is and by the bits of its logits after a fixed text.

    Two loads of the same weights have the same one; other weights, a rounding of the weights, or
    another way to run them give another.

    Attributes:
        kind: the class that runs it.
        logits: digest of them.
    """

    kind: str
    vocab_size: int
    hidden_size: int
    layers: int
    logits: str

    @classmethod
    def of(cls, model: Model) -> "Fingerprint":
        """The fingerprint of a model; costs it a pass over a few tokens, once."""
        if model not in _FOUND:
            sizes = model.vocab_size, model.hidden_size, model.layers
            _FOUND[model] = cls(type(model).__name__, *sizes, _digest(model))
        return _FOUND[model]

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.logits} ({self.layers} layers of {self.hidden_size},"
            f" {self.vocab_size} tokens)"
        )


def adapter_of(model: Model) -> str:
    """Mark of the adapter in a model's weights; empty for none."""
    return getattr(model, "adapter", "")


_FOUND: WeakKeyDictionary[Model, Fingerprint] = WeakKeyDictionary()


def probe_text(model: Model) -> list[int]:
    """Tokens from all over the vocabulary, as many as the context has room for."""
    count = min(PROBED, model.vocab_size, model.context_length or PROBED)
    return [(2 * place + 1) * model.vocab_size // (2 * count) for place in range(count)]


def require_own_session(session: ModelSession, model: Model) -> None:
    """Raise ValueError unless a session that a store of prefixes gives, or gets, is the model's.

    Sessions in one cache are of one model, which costs nothing to see.
    """
    own = session.model
    if own is model or _cache_of(own) is _cache_of(model):
        return
    theirs, ours = Fingerprint.of(own), Fingerprint.of(model)
    if theirs != ours:
        raise ValueError(
            f"the prefix store was made for {theirs}, and {ours} writes the text: what one model"
            " has computed is nothing to another; make one store per model"
        )


def _cache_of(model: Model) -> object:
    return getattr(model, "pool", model)


def _digest(model: Model) -> str:
    with closing(model.start()) as session:
        logits = session.extend(probe_text(model)).rows
    return hashlib.sha256(logits.astype(np.float32).tobytes()).hexdigest()[:12]
