"""Every outcome of a random act, with its exact probability."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.native.logit_rows import Children, LogitRows
from draftwood.native.rows import softmax
from draftwood.rng import Rng

T = TypeVar("T")
Choice = TypeVar("Choice")


def outcomes(act: Callable[[Rng], T]) -> list[tuple[float, T]]:
    """Call ``act`` once for every way its random choices can fall.

    Args:
        act: anything that takes all its randomness from ``accept``, ``draw``, ``draw_distinct``,
            ``draw_independent`` and ``draw_children`` of the Rng it is given, and does nothing else
            by chance.

    Returns:
        (probability, result) pairs, one per sequence of choices; choices of probability 0 are left
        out. The probabilities are 64-bit and sum to 1.

    Raises:
        ValueError: if the act draws from weights that are not numbers, negative or all zero.
        NotImplementedError: if it asks for continuous noise.
    """
    found, script = [], []
    while True:
        rng = ScriptedRng(script)
        result = act(rng)
        found.append((rng.probability, result))
        script = [taken for taken, _ in rng.taken]
        widths = [width for _, width in rng.taken]
        while script and script[-1] + 1 == widths[len(script) - 1]:
            script.pop()
        if not script:
            return found
        script[-1] += 1


class ScriptedRng(Rng):
    """Follows the script, then takes each first choice and remembers what else was possible.

    Attributes:
        probability: of all that happened so far.
        taken: for each choice which one was taken, and how many there were.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        super().__init__(0)
        self.probability = 1.0
        self.taken: list[tuple[int, int]] = []
        self._script = script

    def uniform(self) -> float:
        raise NotImplementedError(
            "a uniform number has too many values to enumerate; use accept or draw"
        )

    def exponential(self, rows: int, columns: int) -> Float[np.ndarray, "rows columns"]:
        raise NotImplementedError(
            "exponential numbers have too many values to enumerate; test this one by sampling"
        )

    def coming(self, count: int) -> list[float]:
        self.uniform()  # refused, as all that is continuous
        return []

    def accept(self, probability: float) -> bool:
        if math.isnan(probability):
            raise ValueError("asked to accept with a probability that is not a number")
        probability = min(1.0, max(0.0, float(probability)))
        return self._choose([(probability, True), (1.0 - probability, False)])

    def exponential_noise(self, tokens: Sequence[int], ahead: int = 0) -> list[float]:
        raise _known_noise()

    def draw_ahead(
        self, logits: Float[np.ndarray, "rows vocab"], row: int, temperature: float, ahead: int
    ) -> int:
        raise _known_noise()

    def foresee(self, probs: Float[np.ndarray, " vocab"], ahead: int) -> int:
        raise _known_noise()

    @property
    def next_draw(self) -> tuple[int, int]:
        raise _known_noise()

    def draw(self, probs: Float[np.ndarray, " vocab"]) -> int:
        return self._choose(_support(probs))

    def draw_from_logits(
        self, logits: Float[np.ndarray, "rows vocab"], row: int, temperature: float
    ) -> int:
        return (
            self.draw(softmax(logits[row : row + 1], temperature)[0])
            if temperature
            else int(logits[row].argmax())
        )

    def draw_distinct(
        self, probs: Float[np.ndarray, "rows vocab"], count: int
    ) -> Int[np.ndarray, "rows {count}"]:
        drawn = []
        for row in probs:
            left, tokens = row.copy(), []
            for _ in range(count):
                # as Rng fills up
                tokens.append(self.draw(left) if left.sum() > 0 else len(left) - 1)
                left[tokens[-1]] = 0.0
            drawn.append(tokens)
        return np.array(drawn, np.int64).reshape(len(probs), count)

    def draw_independent(
        self, probs: Float[np.ndarray, "rows vocab"], count: int
    ) -> Int[np.ndarray, "rows {count}"]:
        drawn = [[self.draw(row) for _ in range(count)] for row in probs]
        return np.array(drawn, np.int64).reshape(len(probs), count)

    def draw_children(
        self, rows: Float[np.ndarray, "rows vocab"] | LogitRows, count: int, distinct: bool = True
    ) -> Children:
        if isinstance(rows, np.ndarray):
            return super().draw_children(rows, count, distinct)
        draw = self.draw_distinct if distinct else self.draw_independent
        drawn = draw(rows.probs(), count).tolist()
        own = zip(rows.each(), drawn, strict=True)
        return Children(drawn, [[row.chance(token) for token in tokens] for row, tokens in own])

    def _choose(self, choices: Sequence[tuple[float, Choice]]) -> Choice:
        possible = [(probability, choice) for probability, choice in choices if probability > 0.0]
        place = len(self.taken)
        taken = self._script[place] if place < len(self._script) else 0
        probability, choice = possible[taken]
        self.taken.append((taken, len(possible)))
        self.probability *= probability
        return choice


def _support(probs: Float[np.ndarray, " vocab"]) -> list[tuple[float, int]]:
    weights = probs.tolist()
    total = math.fsum(weights)
    if not total > 0.0 or min(weights) < 0.0:
        raise ValueError(f"asked to draw a token with the weights {weights}")
    return [(weight / total, token) for token, weight in enumerate(weights)]


def _known_noise() -> NotImplementedError:
    return NotImplementedError(
        "noise that is known before a draw cannot be enumerated; test this one by sampling"
    )
