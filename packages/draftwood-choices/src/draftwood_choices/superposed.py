"""Superposed texts: k texts from one row of the model, which reads a mixture of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from jaxtyping import Float

from draftwood import engine
from draftwood.arrays import as_array
from draftwood.engine import Options
from draftwood.engine.task import KeepsCache
from draftwood.models.model import Model, ModelOutput, ModelSession, PromptInput, extend_in_chunks
from draftwood.models.requirements import require_ability
from draftwood.native.rows import topk
from draftwood.together import clock

WEIGHTS = (0.01, 0.04, 0.15)
"""Weights of chances behind 1, 2 and 3 tokens, as published for n-grams to 4."""


class CountedTexts(Protocol):
    """Texts whose n-grams are counted, for instance a ``TokenIndex`` of a datastore."""

    def counts(self, before: Sequence[int], tokens: Sequence[int]) -> tuple[int, np.ndarray]:
        """Count the places behind some tokens, and those that each of others follows [tokens]."""
        ...


@dataclass(frozen=True)
class Superposition:
    """Knobs of Superposed Decoding; the defaults are those published for n-grams to 4.

    Attributes:
        alpha: share of the n-grams in a token's score; 0 leaves them out.
        temperature: tau, of the model's distribution.
        candidates: tokens of it that are looked at, for each text.
        penalty: taken off the score of a text none of whose candidates stands in the n-grams.

    Raises:
        ValueError: for knobs out of range.
    """

    alpha: float = 0.55
    temperature: float = 0.1
    candidates: int = 3
    penalty: float = 200.0

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < 1 and self.temperature > 0 and self.candidates > 0):
            raise ValueError(
                "superposed needs 0 <= alpha < 1, a temperature above 0 and at least 1 candidate,"
                f" got {self.alpha}, {self.temperature} and {self.candidates}"
            )


@dataclass(frozen=True)
class SuperposedText:
    """One of the texts.

    Attributes:
        tokens: of the answer.
        score: sum over its tokens of (1 - alpha) log p + alpha log q, in nats, where p is the
            mixture's distribution and q the n-grams'.
        ended: True where it has an end token.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    ended: bool = False


@dataclass(eq=False)
class SuperposedTexts(KeepsCache):
    """Write k texts with one row a pass, as one task of a scheduler.

    Superposed Decoding (Shen et al. 2024, arXiv:2405.18400): the model reads the sum of the texts'
    newest embeddings, weighted by the texts' probabilities, so that its distribution is one for all
    of them. Which tokens go with which text is then told by n-grams: each text goes on with the
    candidates that stand behind its own last tokens, scored p^(1 - alpha) q^alpha, and the k best
    of all continuations are kept.

    Differs from the paper: texts that end leave the mixture and make room for others, until k have
    ended or a text has the greatest length; nothing is reset in long texts.

    Args:
        target: a model that reads vectors in the place of tokens.
        prompt: its tokens.
        options: length and end tokens; nothing is drawn.
        count: texts.
        n_grams: of a given text; needed where alpha is above 0.
        knobs: of the method.

    Attributes:
        texts: that go on, the best first.
        ended: texts with an end token.
        runs: forward passes behind the prompt's, of a row each.
        prefill_seconds: of the passes over the prompt.

    Raises:
        ValueError: for an empty prompt, no texts, missing n-grams, a temperature or grammar, and a
            target that reads tokens alone.
    """

    target: Model
    prompt: Sequence[int]
    options: Options
    count: int
    n_grams: CountedTexts | None = None
    knobs: Superposition = field(default_factory=Superposition)

    def __post_init__(self) -> None:
        for ability in ("embeddings", "embeddings_and_head"):
            require_ability(self.target, ability, "method 'superposed'")
        if not self.prompt or self.count < 1:
            raise ValueError(
                f"superposed answers need a prompt and a count of at least 1, got"
                f" {len(self.prompt)} tokens and {self.count}"
            )
        if self.knobs.alpha and self.n_grams is None:
            raise ValueError("superposed needs n-grams of a text; give a datastore, or set alpha 0")
        if not self.options.sampler.greedy or self.options.constraint is not None:
            raise ValueError(
                "superposed draws nothing and follows no grammar or schema; set temperature 0, and"
                " leave these out"
            )
        self._longest = self.options.longest(self.target, self.prompt)
        self.texts, self.ended = [SuperposedText()], list[SuperposedText]()
        self.runs = 0
        self.prefill_seconds = 0.0
        self._session: ModelSession | None = None

    @property
    def finish_reason(self) -> str | None:
        """Set once k have ended, or the others are as long as they may be."""
        if len(self.ended) >= self.count or not self.texts:
            return "stop"
        return "length" if len(self.texts[0].tokens) >= self._longest else None

    @property
    def best(self) -> list[SuperposedText]:
        """At most k texts, the best first; those that go on only where fewer than k have ended."""
        is_enough = len(self.ended) >= self.count
        found = self.ended if is_enough else [*self.ended, *self.texts]
        return sorted(found, key=lambda text: -text.score)[: self.count]

    def plan(self, budget: engine.StepBudget) -> Sequence[engine.ModelInput]:
        del budget
        if self._session is None:
            since, self._session = clock(), self.target.start()
            if len(self.prompt) > 1:
                extend_in_chunks(self._session, self.prompt[:-1])
            self.prefill_seconds = clock() - since
            return [PromptInput(self._session, self.prompt[-1:], "last")]
        return [PromptInput(self._session, (), "last", embeddings=self.mixture()[None])]

    def mixture(self) -> Float[np.ndarray, " hidden"]:
        """Sum of the newest tokens' embeddings, weighted by the texts' probabilities."""
        newest = np.array([text.tokens[-1] for text in self.texts])
        rows = as_array(self.target.embeddings_and_head.embed(newest)).astype(np.float32)
        return self.weights() @ rows

    def weights(self) -> Float[np.ndarray, " texts"]:
        """Probabilities of the texts that go on, among these."""
        scores = np.array([text.score for text in self.texts])
        likely = np.exp(scores - scores.max())
        return (likely / likely.sum()).astype(np.float32)

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> list[object]:
        """Let the texts go on; reports nothing before the end."""
        if self.texts[0].tokens:
            self.runs += 1
        else:
            self.prefill_seconds += seconds
        tokens, log_probs = self._candidates(outputs[0].rows[-1])
        grown = [
            SuperposedText((*text.tokens, token), text.score + score, token in self._ends)
            for text in self.texts
            for token, score in zip(tokens, self._scores(text, tokens, log_probs), strict=True)
            if score > -np.inf
        ]
        grown.sort(key=lambda text: -text.score)
        self.texts = []
        for text in grown:
            if len(self.texts) == self.count:
                break
            (self.ended if text.ended else self.texts).append(text)
        return []

    @property
    def _ends(self) -> frozenset[int]:
        return frozenset(self.options.stop_tokens)

    def _candidates(
        self, logits: Float[np.ndarray, " vocab"]
    ) -> tuple[list[int], Float[np.ndarray, " tokens"]]:
        """Find the likeliest tokens, and their log-probabilities among each other, in nats."""
        count = min(len(logits), self.knobs.candidates * self.count)
        tokens = topk(logits[None], count)[0]
        scaled = logits[tokens].astype(np.float64) / self.knobs.temperature
        scaled -= scaled.max()
        return tokens.tolist(), scaled - np.log(np.exp(scaled).sum())

    def _scores(
        self, text: SuperposedText, tokens: Sequence[int], log_probs: Float[np.ndarray, " tokens"]
    ) -> Float[np.ndarray, " tokens"]:
        """Score what the candidates add to a text; minus infinity for none of its own."""
        alpha = self.knobs.alpha
        if not alpha or self.n_grams is None:
            return log_probs
        chances = self.chances((*self.prompt, *text.tokens), tokens)
        if not chances.any():
            return (1 - alpha) * log_probs - self.knobs.penalty
        with np.errstate(divide="ignore"):
            return (1 - alpha) * log_probs + alpha * np.log(chances)

    def chances(self, before: Sequence[int], tokens: Sequence[int]) -> Float[np.ndarray, " tokens"]:
        """Weigh the chances of tokens behind the last 1, 2 and 3 tokens of a text."""
        found = np.zeros(len(tokens))
        for length, weight in enumerate(WEIGHTS, start=1):
            if length <= len(before) and self.n_grams is not None:
                places, counts = self.n_grams.counts(before[-length:], tokens)
                found += weight * counts / max(1, places)
        return found

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
