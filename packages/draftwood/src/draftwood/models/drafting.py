"""A model as it drafts: rounded weights, and a vocabulary of its own."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.models.model import Model, ModelOutput
from draftwood.models.native import NativeModel
from draftwood.models.native.int4 import layer_bits
from draftwood.models.shared import SharedPasses, shared_passes
from draftwood.native.formats import INTEGERS, Products
from draftwood.native.logit_rows import Support

LEAST_SAVING = 1.5
"""Vocabulary over draft vocabulary below which nothing is left out."""
LEAST_BITS = 5.25
"""Bits of a layer's weight, scales included, from which 4 save time; they are 5 with theirs."""
MOST_FOLLOWED = 2048
"""Further tokens of a text that are drafted too."""


class DraftingModel:
    """A model as it drafts, and the tokens that it drafts in any text.

    On the native path integers are put into 4 bits where that saves time, and weights in floats
    into 8 bits; rejection keeps the target's distribution whatever the draft's is. Other models
    stay what they are.

    Args:
        model: any; its cache is shared.
        likeliest: first tokens of a large vocabulary that are drafted in any text; 0 for all. Byte
            pair encodings number their tokens in the order of their merges, frequent ones first.

    Attributes:
        model: that runs.
        support: the tokens of its rows' entries; None where entry i belongs to token i.
        known: these tokens; none where all are.
    """

    def __init__(self, model: Model, likeliest: int = 0) -> None:
        inner = model.inner if isinstance(model, SharedPasses) else model
        self.model, self.known = model, frozenset[int]()
        self.support: Support | None = None
        if not isinstance(inner, NativeModel):
            return
        if 0 < likeliest * LEAST_SAVING <= inner.vocab_size:
            self.support = Support(_likeliest(inner, likeliest))
            self.known = frozenset(self.support.ids)
        tokens = None if self.support is None else self.support.tokens
        layers, head = _roundings(inner)
        if tokens is not None or layers is not None or head != inner.products:
            made = inner.drafting(tokens, layers, head)
            self.model = shared_passes(made) if isinstance(model, SharedPasses) else made


def _likeliest(model: NativeModel, count: int) -> Int[np.ndarray, " draft_vocab"]:
    ends = [token for token in sorted(model.end_tokens) if count <= token < model.vocab_size]
    return np.array([*range(count), *ends])


def _roundings(model: NativeModel) -> tuple[Products | None, Products]:
    """Products of layers and of the output head; None leaves the layers as they are."""
    bits, is_fast = layer_bits(model.weights), bool(model.library.draftwood_instructions(True))
    if model.products in INTEGERS:
        return ("int4" if is_fast and bits > LEAST_BITS else None), "int4"
    return ("int8", "int8") if is_fast and bits else (None, model.products)


class DraftTokens:
    """The draft vocabulary of one text: that of any text, and the tokens that are there.

    A text that names things repeats the names. Their logits come from the model's own output head.

    Args:
        drafting: the model.

    Attributes:
        further: tokens beside those of any text, in the order in which the text has them.
        support: the tokens of a row's entries; None where entry i belongs to token i.
    """

    def __init__(self, drafting: DraftingModel) -> None:
        self.drafting, self.further, self.support = drafting, list[int](), drafting.support

    @property
    def tokens(self) -> Int[np.ndarray, " draft_vocab"] | None:
        """The tokens of a row's entries; None where entry i belongs to token i."""
        return None if self.support is None else self.support.tokens

    def copied(self) -> "DraftTokens":
        """The same so far, for a text that may go on otherwise."""
        other = copy(self)
        other.further = list(self.further)
        return other

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose states ``logits`` reads."""
        return (self.drafting.model.layers,) if self.further else ()

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in tokens of the text."""
        if self.support is None:
            return
        known, vocab = self.drafting.known, self.drafting.model.vocab_size
        new = [each for each in dict.fromkeys(tokens) if each not in known and each < vocab]
        new = [each for each in new if each not in self.further]
        if new := new[: MOST_FOLLOWED - len(self.further)]:
            self.further += new
            self.support = self.support.extended(new)

    def logits(self, output: ModelOutput) -> Float[np.ndarray, "rows draft_vocab"]:
        """Rows of a pass that handed out the ``hidden`` states."""
        if not self.further:
            return output.rows
        (layer,) = self.hidden
        states = output.hidden[layer][-len(output.rows) :]
        head, further = self.drafting.model.embeddings_and_head, np.array(self.further)
        both = output.rows, head.logits(states, further, normed=True)
        # PyTorch would wake threads for this, which get into the way of the next pass
        return np.concatenate([as_array(rows) for rows in both], -1)
