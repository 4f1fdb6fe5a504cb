"""Find the parts of its layers that a model misses least: draw, weigh and search sets of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from draftwood.models.model import ForwardInput, Layers, Model, ModelSession
from draftwood.models.session import PooledSession
from draftwood.tree import DraftTree

SET = Bool[ndarray, " units"]
"""Mask of the units that are left out."""

BAND = 6  # steps by which a programme's partial sets may be ahead of their share, or behind
TRIED = 64  # random sets, and as many neighbours of the best, that a Bayesian step chooses from
USUAL_RATIO, MOST_RATIO = 3, 8  # of a layer's MLP to its attention by time
TIMED = 5  # passes of each kind
WRITTEN = 24  # tokens of a text to find a first set in
REACH, NOISE, CURIOSITY = 0.15, 0.02, 1.0  # of a Gaussian process over sets; shares of the units


@dataclass(frozen=True)
class Units:
    """Parts of a model that can be left out one by one: layers, or each one's attention and MLP.

    The first layer and the last one always stay.

    Args:
        depth: layers of the model, at least 4.
        halves: whether attention and MLP are left out apart.
        ratio: how often a layer's attention goes into its MLP by time, rounded; 1 to 8.
    """

    depth: int
    halves: bool
    ratio: int = USUAL_RATIO

    @cached_property
    def weights(self) -> Sequence[int]:
        """Cost of each unit, in steps, layer by layer."""
        inner = self.depth - 2
        return [1, self.ratio] * inner if self.halves else [1] * inner

    def share(self, left_out: SET) -> float:
        """Share of all layers' time that a set saves."""
        whole = sum(self.weights) * self.depth / (self.depth - 2)
        return float(np.dot(left_out, self.weights)) / whole

    def steps(self, share: float) -> int:
        """Steps that a set of this share saves."""
        whole = sum(self.weights) * self.depth / (self.depth - 2)
        return min(round(share * whole), sum(self.weights))

    def layers(self, left_out: SET) -> Layers:
        chosen = [int(unit) for unit in np.flatnonzero(left_out)]
        if not self.halves:
            whole = frozenset(unit + 1 for unit in chosen)
            return Layers(without_attention=whole, without_mlp=whole)
        return Layers(
            without_attention=frozenset(unit // 2 + 1 for unit in chosen if unit % 2 == 0),
            without_mlp=frozenset(unit // 2 + 1 for unit in chosen if unit % 2),
        )

    def evenly(self, share: float) -> SET:
        """Every other layer, from the middle outwards, until the share is saved."""
        per_layer = 2 if self.halves else 1
        inner, middle = self.depth - 2, (self.depth - 3) / 2
        order = sorted(range(inner), key=lambda layer: (layer % 2 == 0, abs(layer - middle)))
        left_out = np.zeros(inner * per_layer, dtype=bool)
        for layer in order:
            if self.share(left_out) >= share:
                break
            left_out[layer * per_layer : (layer + 1) * per_layer] = True
        return left_out

    def drawn(self, share: float, chance: np.random.Generator) -> SET:
        """A random set that saves the share, or a little more."""
        left_out = np.zeros(len(self.weights), dtype=bool)
        for unit in chance.permutation(len(self.weights)):
            if self.share(left_out) >= share:
                break
            left_out[unit] = True
        return left_out

    def neighbour(self, left_out: SET, chance: np.random.Generator) -> SET:
        """One unit comes back, and another of the same cost goes."""
        out = chance.choice(np.flatnonzero(left_out))
        alike = [
            unit
            for unit, weight in enumerate(self.weights)
            if not left_out[unit] and weight == self.weights[out]
        ]
        other = left_out.copy()
        if alike:
            other[out], other[chance.choice(alike)] = False, True
        return other


def likely_better(
    units: Units,
    seen: Sequence[tuple[SET, float]],
    share: float,
    chance: np.random.Generator,
) -> SET:
    """The set of which a Gaussian process over those seen promises most, with what it cannot tell
    (Snoek et al. 2012, arXiv:1206.2944; SWIFT's Bayesian step).

    Args:
        seen: sets and their scores, at least one.
    """
    known = np.array([own for own, _ in seen], dtype=float)
    scores = np.array([score for _, score in seen])
    best = seen[int(scores.argmax())][0]
    tried = [units.drawn(share, chance) for _ in range(TRIED)]
    tried += [units.neighbour(best, chance) for _ in range(TRIED)]
    others = np.array(tried, dtype=float)

    def alike(these: ndarray, those: ndarray) -> ndarray:
        apart = np.abs(these[:, None] - those[None]).mean(-1)
        return np.exp(-apart / REACH)

    spread = max(float(scores.std()), 0.05)
    within = alike(known, known) + (NOISE / spread) ** 2 * np.eye(len(known))
    between = alike(others, known)
    solved = np.linalg.solve(within, np.c_[(scores - scores.mean()) / spread, between.T])
    unsure = 1.0 - np.einsum("ij,ji->i", between, solved[:, 1:])
    promise = between @ solved[:, 0] + CURIOSITY * np.sqrt(unsure.clip(0.0))
    return tried[int(promise.argmax())]


def agreement(session: ModelSession, tokens: Sequence[int], layers: Layers) -> float:
    """The share of the newest tokens of a text that a part of the model would have written.

    Args:
        tokens: the newest ones; all but the first are compared.
    """
    fork = session.fork(length=session.length - len(tokens))
    try:
        given = ForwardInput(fork, DraftTree.chain(list(tokens)), layers=layers)
        said = session.model.forward([given])[0].logits[:-1].argmax(-1).tolist()
    finally:
        fork.close()
    return sum(map(int.__eq__, said, tokens[1:])) / len(said)


@dataclass(frozen=True, eq=False)
class _Partial:
    """A set over the units so far, and the state with which it comes out of them."""

    left_out: tuple[bool, ...]
    state: Float[Tensor, " dim"]


def time_ratio(model: Model) -> int:
    """Ratio of a layer's time in its MLP to that in its attention, after a short context."""
    inner, session = frozenset(range(1, model.layers - 1)), model.start()
    node = DraftTree.chain([min(1, model.vocab_size - 1)])

    def seconds(layers: Layers) -> float:
        given, times = ForwardInput(session, node, layers=layers, keep="none"), []
        for _ in range(TIMED):
            since = time.perf_counter()
            model.forward([given])
            times.append(time.perf_counter() - since)
        return median(times)

    try:
        ends = seconds(Layers(without_attention=inner, without_mlp=inner))
        attention = seconds(Layers(without_mlp=inner)) - ends
        mlp = seconds(Layers(without_attention=inner)) - ends
    finally:
        session.close()
    if min(attention, mlp) <= 0.0:
        return USUAL_RATIO
    return min(max(round(mlp / attention), 1), MOST_RATIO)


def found_alone(model: Model, units: Units, share: float) -> SET:
    """Run ``programme`` on a text that the model writes without a prompt."""
    session, tokens = model.start(), [min(1, model.vocab_size - 1)]
    try:
        for _ in range(min(WRITTEN, (model.context_length or 2 * WRITTEN) - 3)):
            logits = session.extend(tokens[-1:], "last").logits
            tokens.append(int(logits[-1].argmax()))
        return programme(session, tokens[-3:-1], units, share)
    finally:
        session.close()


def programme(session: ModelSession, tokens: Sequence[int], units: Units, share: float) -> SET:
    """The set that a dynamic programme over hidden states finds at one place of a text.

    CLaSp (Chen et al. 2025, arXiv:2505.24196) over whole layers; over halves with what each costs,
    the knapsack of KnapSpec (Cha et al. 2026, arXiv:2602.20217). Of the partial sets that save
    alike, the one stays whose state has the largest cosine with the whole model's. All states go
    through a unit together, as siblings of a tree.

    Args:
        tokens: the newest two of the text.
    """
    before, newest = tokens
    fork = session.fork(length=session.length - 2)
    assert isinstance(fork, PooledSession)
    goal = units.steps(share)
    try:
        pair = ForwardInput(fork, DraftTree.chain([before, newest]), layers=Layers(stop=1))
        root, own = session.model.forward([pair])[0].states(1)
        found, spent, whole = {0: _Partial((), own)}, 0, sum(units.weights)
        for unit, weight in enumerate(units.weights):
            layer, half = (unit // 2 + 1, unit % 2) if units.halves else (unit + 1, None)
            tree = DraftTree.of(
                [before, *[newest] * (1 + len(found))], [-1, *[0] * (1 + len(found))]
            )
            layers = _only(layer, half)
            states = torch.stack([root, own, *(each.state for each in found.values())])
            fork.place_states(tree, states, layers)
            given = ForwardInput(fork, tree, layers=layers)
            root, own, *kept = session.model.forward([given])[0].states(layer + 1)
            spent += weight
            middle = goal * spent / whole
            band = BAND * (units.ratio + 1) / 2 if units.halves else BAND
            least = max(middle - band, goal - (whole - spent))
            found = _best(found, kept, own, weight, least, min(middle + band, goal))
    finally:
        fork.close()
    return np.array(found[max(found)].left_out)


def _only(layer: int, half: int | None) -> Layers:
    """One layer, or its attention (0) or MLP (1) alone."""
    alone = frozenset({layer})
    return Layers(
        layer,
        layer + 1,
        without_attention=alone if half == 1 else frozenset(),
        without_mlp=alone if half == 0 else frozenset(),
    )


def _best(
    found: dict[int, _Partial],
    kept: Sequence[Tensor],
    own: Tensor,
    weight: int,
    least: float,
    most: float,
) -> dict[int, _Partial]:
    """Extend partial sets by one more unit, left out or not; keep the best for each number of steps
    saved.
    """
    options: dict[int, list[_Partial]] = {}
    for (saved, each), state in zip(found.items(), kept, strict=True):
        options.setdefault(saved, []).append(_Partial((*each.left_out, False), state))
        without = _Partial((*each.left_out, True), each.state)
        options.setdefault(saved + weight, []).append(without)
    inside = {saved: own for saved, own in options.items() if least <= saved <= most}
    nearest = min(options, key=lambda saved: abs(saved - (least + most) / 2))
    return {
        saved: max(some, key=lambda each: float(cosine_similarity(each.state, own, dim=0)))
        for saved, some in (inside or {nearest: options[nearest]}).items()
    }
