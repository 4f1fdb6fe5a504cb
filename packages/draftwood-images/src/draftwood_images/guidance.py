"""Guidance: a model that runs a sequence with and without its words, and adds the difference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from draftwood.models.model import (
    Ability,
    Device,
    EmbeddingsAndHead,
    ForwardInput,
    Keep,
    Model,
    ModelInput,
    ModelOutput,
    ModelSession,
    PromptInput,
)
from draftwood.models.requirements import NoEmbeddingsAndHead, require_ability
from draftwood.tree import DraftTree

ABILITIES: frozenset[Ability] = frozenset({"fork"})
"""Abilities of a model that its guided form has too."""


@dataclass(frozen=True, eq=False)
class GuidedModel:
    """A model of which each sequence is run twice in one pass: as it is, and without its words.

    The logits are u + scale * (c - u), where c are those of the sequence and u those of the other
    (classifier-free guidance: Ho and Salimans 2022, arXiv:2207.12598; of texts: Sanchez et al.
    2023, arXiv:2306.17806). It is a model as any other, so all drafters, shapes and verifiers
    apply, and what is exact for a model is exact for its guided form.

    Args:
        inner: that makes the passes.
        scale: 1 changes nothing, 0 forgets the words.
        opener: tokens with which the part begins that both sequences have, at their first place in
            the prompt: what opens a picture, or an answer.
        instead: tokens that the other sequence has in the place of all before these.

    Raises:
        ValueError: for a scale that is no number of at least 0, no opener, and tokens that the
            model has not.
    """

    inner: Model
    scale: float
    opener: tuple[int, ...]
    instead: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0.0 <= self.scale < float("inf"):
            raise ValueError(f"guidance must be a finite number of at least 0, got {self.scale}")
        if not self.opener:
            raise ValueError("guidance needs the tokens that open what is guided, got none")
        for token in (*self.opener, *self.instead):
            if not 0 <= token < self.inner.vocab_size:
                raise ValueError(
                    f"guidance names token {token}; the model has 0 to {self.inner.vocab_size - 1}"
                )

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def context_length(self) -> int | None:
        most = self.inner.context_length
        return None if most is None else most - max(0, len(self.instead) - 1)

    @property
    def layers(self) -> int:
        return self.inner.layers

    @property
    def end_tokens(self) -> frozenset[int]:
        return self.inner.end_tokens

    @property
    def device(self) -> Device:
        return self.inner.device

    @property
    def hidden_size(self) -> int:
        return self.inner.hidden_size

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        return NoEmbeddingsAndHead(self)

    @property
    def abilities(self) -> frozenset[Ability]:
        return ABILITIES & self.inner.abilities

    def start(self) -> "GuidedSession":
        return GuidedSession(self)

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run both sequences of all inputs in one pass."""
        pairs = [_session_of(each, self).pair(each) for each in inputs]
        made = iter(self.inner.forward([half for pair in pairs for half in pair.halves]))
        outputs = [[next(made) for _ in pair.halves] for pair in pairs]
        for pair in pairs:
            pair.take()
        return [self._mixed(pair, own) for pair, own in zip(pairs, outputs, strict=True)]

    def _mixed(self, pair: "Pair", outputs: Sequence[ModelOutput]) -> ModelOutput:
        """Mix the rows that both sequences have; those before the opener stay as they are."""
        if len(outputs) == 1:
            return outputs[0]
        with_words, without = (each.rows for each in outputs)
        shared = min(pair.shared, len(with_words))
        if not shared:
            return ModelOutput(with_words)
        own = with_words[-shared:]
        guided = self.guided(own, without[-shared:])
        return ModelOutput(np.concatenate([with_words[:-shared], guided]))

    def guided(
        self, with_words: Float[np.ndarray, "rows vocab"], without: Float[np.ndarray, "rows vocab"]
    ) -> Float[np.ndarray, "rows vocab"]:
        """Logits by those of both sequences."""
        return without + np.float32(self.scale) * (with_words - without)


@dataclass(frozen=True, eq=False)
class Pair:
    """An input of a guided sequence, as its two sequences run it.

    Attributes:
        session: of the input.
        halves: inputs of the inner model; one alone before the opener.
        shared: rows that both have.
        opened: place of the opener, from then on.
        tokens: that it appends for good.
        tree: that it runs.
    """

    session: "GuidedSession"
    halves: tuple[ModelInput, ...]
    shared: int
    opened: int | None
    tokens: Sequence[int] = ()
    tree: DraftTree | None = None

    def take(self) -> None:
        """Let the session go on behind a pass that was made."""
        self.session.tokens += self.tokens
        self.session.opened, self.session.tree = self.opened, self.tree


class GuidedSession:
    """A sequence as it is and without its words, on one inner model.

    Attributes:
        tokens: committed so far, words included.
        opened: place of the opener among them; None before it.
        tree: that was run since the last commit.
        with_words, without: sessions of the inner model; the second is empty before the opener.
    """

    def __init__(self, model: GuidedModel) -> None:
        self.model = model
        self.tokens = list[int]()
        self.opened: int | None = None
        self.tree: DraftTree | None = None
        self.with_words, self.without = model.inner.start(), model.inner.start()

    @property
    def length(self) -> int:
        return len(self.tokens)

    def pair(self, given: ModelInput) -> Pair:
        """Both sequences' shares of a pass.

        Raises:
            ValueError: for what they do not run, and for a tree before the opener.
        """
        if isinstance(given, PromptInput):
            return self._appended(given)
        if not isinstance(given, ForwardInput):
            require_ability(self.model, "rows", "a pass that is neither a prompt's nor a tree's")
            raise ValueError("guidance runs prompts and trees")
        if self.opened is None:
            raise ValueError(
                f"the prompt lacks what opens the guided part, tokens {list(self.model.opener)};"
                " end it with these"
            )
        self._require_plain(given.hidden)
        halves = (replace(given, session=own) for own in (self.with_words, self.without))
        return Pair(self, tuple(halves), given.rows, self.opened, tree=given.tree)

    def _appended(self, given: PromptInput) -> Pair:
        self._require_plain(given.hidden)
        if given.embeddings is not None:
            require_ability(self.model, "embeddings", "a guided prompt of vectors")
        first = replace(given, session=self.with_words)
        if self.opened is not None:
            halves = first, replace(given, session=self.without)
            return Pair(self, halves, given.rows, self.opened, given.tokens)
        text = [*self.tokens, *given.tokens]
        place = _place_of(self.model.opener, text)
        if place is None:
            return Pair(self, (first,), 0, None, given.tokens)
        own = [*self.model.instead, *text[place:]]
        second = replace(given, session=self.without, tokens=own)
        return Pair(self, (first, second), len(text) - place, place, given.tokens)

    def _require_plain(self, hidden: Sequence[int]) -> None:
        if hidden:
            require_ability(self.model, "hidden", f"a pass that gives hidden states {list(hidden)}")

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        given = PromptInput(self, tokens, keep, tuple(hidden), embeddings)
        return self.model.forward([given])[0]

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        return self.model.forward([ForwardInput(self, tree, first, tuple(hidden))])[0]

    def commit(self, path: Sequence[int]) -> None:
        if path and self.tree is None:
            raise ValueError(f"a commit of nodes {list(path)} needs a tree that was run before")
        self.with_words.commit(path)
        self.without.commit(path)
        if self.tree is not None:
            self.tokens += [self.tree.token_list[node] for node in path]
        self.tree = None

    def rewind(self, count: int) -> None:
        self.with_words.rewind(count)
        left = len(self.tokens) - count
        taken, self.tokens = self.tokens[left:], self.tokens[:left]
        self.tree = DraftTree.chain(taken) if taken else None
        if self.opened is None:
            return
        if left >= self.opened + len(self.model.opener):
            self.without.rewind(count)
        else:  # it begins again
            self.without.clear()
            self.opened = None

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> "GuidedSession":
        length = len(self.tokens) if length is None else length
        fork = GuidedSession(self.model) if into is None else into
        if not isinstance(fork, GuidedSession) or fork.model is not self.model or fork.tokens:
            raise ValueError("a fork goes into an empty session of the same model")
        self.with_words.fork(fork.with_words, length)
        opened = self.opened
        if opened is not None and length >= opened + len(self.model.opener):
            self.without.fork(fork.without, len(self.model.instead) + length - opened)
            fork.opened = opened
        fork.tokens = self.tokens[:length]
        return fork

    def wants(self, count: int) -> int:
        return self.with_words.wants(count) + self.without.wants(count)

    def clear(self) -> None:
        self.tokens, self.opened, self.tree = [], None, None
        self.with_words.clear()
        self.without.clear()

    def close(self) -> None:
        try:
            self.with_words.close()
        finally:
            self.without.close()


def _session_of(given: ModelInput, model: GuidedModel) -> GuidedSession:
    session = given.session
    if not isinstance(session, GuidedSession) or session.model is not model:
        raise ValueError("all sessions of a run must belong to the model that runs them")
    return session


def _place_of(opener: tuple[int, ...], text: Sequence[int]) -> int | None:
    """First place of the opener in a text; None where it is not there."""
    places = range(len(text) - len(opener) + 1)
    return next((at for at in places if tuple(text[at : at + len(opener)]) == opener), None)
