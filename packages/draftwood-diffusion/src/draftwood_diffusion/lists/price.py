"""Prices of unmasking in bits: how far from a list's distribution a method writes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.lists.walk import Point, Unwritten, along
from draftwood_diffusion.unmasking import Unmasking


@dataclass(frozen=True)
class Price:
    """Cost of a method on a list.

    Attributes:
        bits: divergence of the list's distribution from the method's, sum of p log2(p / q).
        accuracy: probability that the method writes a text of the list.
        passes: on average over the list's own texts.
        tokens: of a text.
    """

    bits: float
    accuracy: float
    passes: float
    tokens: int

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes


def price(unwritten: Unwritten) -> Price:
    """Price of a method at temperature 1.

    Rules see no draws, so a method that revises nothing writes each text in one way only, and the
    text's probability is the product over its passes: a list of many texts is as easy as each of
    them. Where tokens change again every draw is followed.
    """
    if unwritten.method.revision.name != "keep":
        return _price_of_all(unwritten)
    listed, bits, accuracy, passes = unwritten.listed, 0.0, 0.0, 0.0
    for text, chance in zip(listed.texts.tolist(), listed.chances.tolist(), strict=True):
        log_prob, runs = 0.0, 0
        for point, seen in along(unwritten, text):
            chosen = point.choice(seen)
            log_prob += float(np.log2(seen.probs[chosen, seen.drawn[chosen]]).sum())
            runs += 1
        bits += chance * (math.log2(chance) - log_prob)
        accuracy += 2.0**log_prob
        passes += chance * runs
    return Price(max(0.0, bits), accuracy, passes, listed.places - len(unwritten.prompt))


@dataclass(frozen=True)
class EveryText:
    """Every text that a method can write.

    Attributes:
        chances: probability of each.
        passes: on average over them.
    """

    chances: Mapping[tuple[int, ...], float]
    passes: float


def distribution(unwritten: Unwritten, greedy: bool = False) -> EveryText:
    """Every text that a method can write and its probability, by following every draw.

    Args:
        greedy: True draws among the likeliest tokens alone, ties by chance; False draws at
            temperature 1.
    """
    remembers = unwritten.method.rule.remembers > 0
    begun = unwritten.begin(unwritten.prompt)
    ways, found = [(begun, 1.0)], dict[tuple[int, ...], float]()
    passes = 0.0
    while ways:
        passes += sum(chance for _, chance in ways)
        coming, known = list[tuple[Point, float]](), dict[object, int]()
        for point, chance in ways:
            for after, part in _draws(point, greedy):
                if after.is_over:
                    found[after.written] = found.get(after.written, 0.0) + chance * part
                elif not remembers and after.key in known:
                    place = known[after.key]
                    coming[place] = coming[place][0], coming[place][1] + chance * part
                else:
                    known[after.key] = len(coming)
                    coming.append((after, chance * part))
        ways = coming
    return EveryText(found, passes)


def _draws(point: Point, greedy: bool) -> list[tuple[Point, float]]:
    """Points after a pass, with their probabilities."""
    seen = point.seen()
    chosen = point.choice(seen)
    rows = [_tied(row) if greedy else row for row in seen.probs[chosen]]
    tokens = [np.flatnonzero(row).tolist() for row in rows]
    found = []
    for drawn in product(*tokens):
        own = seen.drawn.copy()
        own[chosen] = drawn
        chance = math.prod(float(row[token]) for row, token in zip(rows, drawn, strict=True))
        found.append((point.after(point.seen(own)), chance))
    return found


def _tied(row: Float[np.ndarray, " vocab"]) -> Float[np.ndarray, " vocab"]:
    """Equal chances of the likeliest tokens."""
    likeliest = row >= row.max() * (1.0 - 1e-9)
    return likeliest / likeliest.sum()


def _price_of_all(unwritten: Unwritten) -> Price:
    """The same by way of every text that the method can write."""
    listed, found = unwritten.listed, distribution(unwritten)
    bits, right = divergence(listed, found.chances), accuracy(listed, found.chances)
    return Price(bits, right, found.passes, listed.places - len(unwritten.prompt))


def divergence(listed: ListedTexts, found: Mapping[tuple[int, ...], float]) -> float:
    """Bits from a list's distribution to another one; infinite where that lacks a text."""
    bits = 0.0
    for text, chance in zip(listed.texts.tolist(), listed.chances.tolist(), strict=True):
        other = found.get(tuple(text), 0.0)
        if other <= 0.0:
            return math.inf
        bits += chance * math.log2(chance / other)
    return max(0.0, bits)


def accuracy(listed: ListedTexts, found: Mapping[tuple[int, ...], float]) -> float:
    """Probability of the list's texts under another distribution."""
    return sum(found.get(tuple(text), 0.0) for text in listed.texts.tolist())


def unwritten(
    listed: ListedTexts,
    prompt: tuple[int, ...],
    method: Unmasking,
    block_length: int,
    seed: int = 0,
) -> Unwritten:
    """Texts of a list behind a prompt; only those that begin with it stay."""
    begins = (listed.texts[:, : len(prompt)] == prompt).all(1)
    if not begins.any():
        raise ValueError(f"no text of the list begins with {list(prompt)}")
    own = ListedTexts(listed.texts[begins], listed.weights[begins], listed.vocab)
    order = np.random.default_rng(seed % (1 << 64)).random(listed.places - len(prompt))
    return Unwritten(own, prompt, method, block_length, order)
