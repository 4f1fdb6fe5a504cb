"""Embeddings of texts: hidden states behind the final norm, one vector for each text."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.models.model import CHUNK, Model, ModelSession, PromptInput
from draftwood.models.requirements import beyond, block_cache, require_ability
from draftwood.text.prompts import encode_text, require_characters, token_ids
from draftwood.tokenizer.protocol import AnyTokenizer

POOLINGS = ("mean", "last")
"""The mean of a text's states, or the state of its last token."""


class EmbeddingTask:
    """Embed texts, pass by pass: each runs some tokens, of one text or of several.

    Between two passes the model may do something else.

    Args:
        model: whose states are taken.
        texts: tokens of each.
        pooling: one of ``POOLINGS``.

    Attributes:
        vectors: of the texts that are done, [texts width]; the others are 0.
        most_rows: tokens of a pass.

    Raises:
        ValueError: for a text without tokens, with strange ones, or with more than the model takes,
            for another pooling, and for a model that gives no hidden states.
    """

    most_rows = CHUNK

    def __init__(self, model: Model, texts: Sequence[Sequence[int]], pooling: str = "mean") -> None:
        require_ability(model, "hidden", "an embedding")
        if pooling not in POOLINGS:
            raise ValueError(f"pooling is {' or '.join(POOLINGS)}, not {pooling!r}")
        most = model.context_length
        for number, text in enumerate(texts):
            if not len(text):
                raise ValueError(f"text {number} is empty; give at least one token")
            if min(text) < 0 or max(text) >= model.vocab_size:
                raise ValueError(beyond(text, model.vocab_size))
            if most is not None and len(text) > most:
                raise ValueError(
                    f"text {number} has {len(text)} tokens, and the model takes {most}; shorten it"
                )
        self.model, self.texts, self.pooling = model, texts, pooling
        self.vectors = np.zeros((len(texts), model.hidden_size), np.float32)
        self._sums = np.zeros(model.hidden_size)  # of the text that is begun
        self._session: ModelSession | None = None  # likewise
        self._next = 0

    @classmethod
    def of(
        cls,
        model: Model,
        tokenizer: AnyTokenizer,
        texts: "str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]",
        pooling: str = "mean",
        truncate: bool = False,
    ) -> "EmbeddingTask":
        """Begin with texts that are read by a tokenizer.

        Args:
            truncate: cut texts that are longer than the model's context.

        Raises:
            TypeError: for what is no text.
            ValueError: as the class.
        """
        if not isinstance(texts, Iterable):
            raise TypeError(f"a text to embed is a str or a list of token ids, got {texts!r:.60}")
        if isinstance(texts, Mapping):  # as tokenizers give them
            texts = texts.get("input_ids", texts)
        several = [texts] if isinstance(texts, str) else list(texts)
        if several and all(isinstance(each, Integral) for each in several):
            several = [several]
        most = model.context_length if truncate else None
        return cls(model, [tokens_of(tokenizer, each)[:most] for each in several], pooling)

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.texts))

    def unit_vectors(self, width: int | None = None) -> Float[np.ndarray, "texts width"]:
        """Scale the first entries of each vector to length 1; None takes all."""
        part = self.vectors[:, :width].astype(np.float64)
        lengths = np.linalg.norm(part, axis=-1, keepdims=True)
        return (part / lengths.clip(min=1e-12)).astype(np.float32)

    def numbers(self, width: int | None = None) -> list[list[float]]:
        """The same for JSON, with as many digits as float32 has."""
        return [[float(f"{x:.9g}") for x in each.tolist()] for each in self.unit_vectors(width)]

    @property
    def done(self) -> bool:
        """True if all texts are embedded."""
        return self._next == len(self.texts)

    @property
    def is_amid_text(self) -> bool:
        """True between two passes over one text, whose beginning the cache holds."""
        return self._session is not None

    @property
    def past(self) -> int:
        """Tokens of the text that is begun which were run."""
        return 0 if self._session is None else self._session.length

    @property
    def next_is_long(self) -> bool:
        """True if the next text takes more than a pass."""
        return len(self.texts[self._next]) > self.most_rows

    def step(self, most: int = most_rows) -> bool:
        """Make one pass over so many tokens, of whole texts or of a part of one that is longer;
        True if more are left.

        Raises:
            MemoryError: where the cache has no room; the text that was begun is begun again.
        """
        parts, room, place = list[PromptInput](), most, self._next
        wanted, cache = (self.model.layers,), block_cache(self.model)
        blocks = None if cache is None else cache.free_blocks
        while place < len(self.texts) and (not parts or len(self.texts[place]) <= room):
            session = self._session if place == self._next and self._session else self.model.start()
            tokens = self.texts[place][session.length :][:room]
            if blocks is not None:
                blocks -= session.wants(len(tokens))
                if parts and blocks < 0:  # each text has some of its own
                    session.close()
                    break
            parts.append(PromptInput(session, tokens, "none", wanted))
            room -= len(tokens)
            place += 1
        sessions = [each.session for each in parts]
        try:
            outputs = self.model.forward(parts) if parts else []
            self._session = None
            for part, output in zip(parts, outputs, strict=True):
                self._take(part.session, as_array(output.hidden[self.model.layers]))
        except BaseException:
            self._session = None
            self._sums[:] = 0
            raise
        finally:
            for session in sessions:
                if session is not self._session:
                    session.close()
        return not self.done

    def _take(self, session: ModelSession, states: Any) -> None:
        """Add the states [tokens width] of the next part of a text."""
        states = np.asarray(states, np.float64)
        self._sums += states.sum(0) if self.pooling == "mean" else 0.0
        count = len(self.texts[self._next])
        if session.length < count:
            self._session = session
            return
        found = self._sums / count if self.pooling == "mean" else states[-1]
        self.vectors[self._next] = found
        self._sums[:] = 0
        self._next += 1

    def close(self) -> None:
        """Give back what an unfinished text holds."""
        if self._session is not None:
            self._session.close()
            self._session = None


def tokens_of(tokenizer: AnyTokenizer, text: Any) -> list[int]:
    """Tokens of a text as it is, without a chat template, or the ones that are given.

    Raises:
        TypeError: for what is neither.
        ValueError: for half characters.
    """
    if isinstance(text, str):
        require_characters(text, "the text")
        return encode_text(tokenizer, text)
    found = token_ids(text)
    if found is None:
        raise TypeError(f"a text to embed is a str or a list of token ids, got {text!r:.60}")
    return found
