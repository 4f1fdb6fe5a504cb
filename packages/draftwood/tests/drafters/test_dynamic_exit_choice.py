"""Lengths that a dynamic exit chooses, by expected tokens per layer run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from draftwood.engine import Options, generate
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.testing import tiny_llama
from draftwood.verifiers import Match
from draftwood_methods.drafters.dynamic_exit import DynamicExit, best_length

pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")

DEPTH, EXITS, LONGEST, TOKENS = 6, (1, 3, 5), 6, 160
BAR = 0.9
Policy = Callable[[Any], tuple[int, int]]
"""Gives exit and length for a session, in the place of its own choice."""


def model_of(silent: int, share: float = 0.0) -> NativeModel:
    """A model whose layers from ``silent`` on add so much of what they added.

    With nothing of it, exits from there on draft just what the model says, and all is accepted.
    """
    model = tiny_llama(5, layers=DEPTH)
    with torch.no_grad():
        for layer in model.model.layers[silent:]:
            layer.self_attn.o_proj.weight *= share  # type: ignore[union-attr, operator]
            layer.mlp.down_proj.weight *= share  # type: ignore[union-attr, operator]
    return NativeModel(model)


class Ordered(DynamicExit):
    """Chooses as it is told."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(EXITS, longest=LONGEST)
        object.__setattr__(self, "policy", policy)

    def start(self, request: Any) -> Any:
        session: Any = super().start(request)
        session._choice = lambda: self.policy(session)  # type: ignore[attr-defined]
        session.layer, session.drafted = session._choice()
        return session


def rate(model: NativeModel, drafter: DynamicExit) -> float:
    """Tokens of a greedy text for each layer that was run for it."""
    layers, compute = 0, model.compute

    def counted(parts: Any, hidden: Any) -> Any:
        nonlocal layers
        for part in parts:
            if not getattr(part, "is_prompt", False):
                layers += (part.layers.stop or DEPTH) - part.layers.start
        return compute(parts, hidden)

    model.compute = counted  # type: ignore[method-assign]
    try:
        options = Options(Sampling(), max_new_tokens=TOKENS)
        steps = list(generate(model, drafter, Match(), [1, 2, 3, 4, 5], options))
    finally:
        del model.compute
    return sum(len(step.tokens) for step in steps) / layers


def fixed(layer: int, length: int) -> DynamicExit:
    return Ordered(lambda session: (layer, length))


def worst_exit(session: Any) -> tuple[int, int]:
    """A wrong choice: the exit that promises least, at its best length."""
    whole, found = session.depth + session.head, {}
    for layer, (right, count) in session.seen.items():
        cost = layer + session.head
        length, promised = best_length(right / count, cost, whole, session.longest)
        found[promised, -layer] = layer, length
    return found[min(found)]


def first_at_full_length(session: Any) -> tuple[int, int]:
    """A wrong choice, whatever was seen."""
    return session.layers[0], session.longest


def all_accepted(layer: int) -> float:
    """Tokens for each layer with full drafts of which all are kept."""
    return (LONGEST + 1) / (LONGEST * layer + DEPTH)


@pytest.mark.parametrize(
    ("silent", "best", "fail"),
    [
        (1, all_accepted(1), [worst_exit]),
        (3, all_accepted(3), [worst_exit, first_at_full_length]),
        (DEPTH, 1 / DEPTH, [first_at_full_length]),  # no exit pays: nothing is drafted
    ],
    ids=["the first exit is right", "the second is", "none is"],
)
def test_with_known_acceptance_it_comes_close_to_the_best(
    silent: int, best: float, fail: list[Policy]
) -> None:
    model = model_of(silent)
    assert best * BAR < rate(model, DynamicExit(EXITS, longest=LONGEST)) <= best * 1.05
    for wrong in fail:  # negative controls
        assert rate(model, Ordered(wrong)) < best * BAR


def test_drafts_that_are_kept_now_and_then_are_short() -> None:
    model = model_of(3, share=0.2)  # of the second exit's tokens two thirds are kept
    best = max(rate(model, fixed(layer, length)) for layer in EXITS for length in (0, 1, 2))
    assert rate(model, DynamicExit(EXITS, longest=LONGEST)) > best * BAR
    for wrong in (fixed(3, LONGEST), Ordered(worst_exit), Ordered(first_at_full_length)):
        assert rate(model, wrong) < best * BAR


@pytest.mark.parametrize(
    ("shares", "chosen"),
    [
        ({1: 0.0, 3: 0.0, 5: 0.0}, 0),
        ({1: 0.99, 3: 0.99, 5: 0.99}, 1),
        ({1: 0.1, 3: 0.95, 5: 0.97}, 3),
        ({1: 0.1, 3: 0.2, 5: 0.99}, 5),
    ],
)
def test_of_known_shares_no_exit_and_length_promise_more(
    shares: dict[int, float], chosen: int
) -> None:
    """Compared with the mean of draws, by which drafts end at the first that is not kept."""
    rng = torch.Generator().manual_seed(0)
    uniform = torch.rand(20_000, LONGEST, generator=rng)

    def promised(layer: int, length: int) -> float:
        kept = (uniform[:, :length] < shares.get(layer, 0.0)).long().cumprod(-1).sum(-1)
        return float(1 + kept.float().mean()) / (length * (layer + head) + DEPTH + head)

    session = _started(model_of(DEPTH))
    head = session.head
    session.seen = {layer: (1000 * share, 1000.0) for layer, share in shares.items()}
    layer, length = session._choice()
    assert (layer if length else 0) == chosen
    best = max(promised(each, count) for each in EXITS for count in range(LONGEST + 1))
    assert promised(layer, length) > 0.99 * best
    if chosen:
        assert promised(*worst_exit(session)) < 0.9 * best  # negative control


def _started(model: NativeModel) -> Any:
    """A session after the first step of a text."""
    found: list[Any] = []

    class Kept(DynamicExit):
        def start(self, request: Any) -> Any:
            found.append(super().start(request))
            return found[-1]

    drafter = Kept(EXITS, longest=LONGEST)
    list(generate(model, drafter, Match(), [1, 2, 3], Options(Sampling(), max_new_tokens=2)))
    return found[0]
