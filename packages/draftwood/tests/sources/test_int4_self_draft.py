"""The target's weights in 4 bits as a source of `auto`: asked where that pays, and never a change
of the text.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from draftwood import engine, methods
from draftwood.drafters.multi_source import MultiSource
from draftwood.engine import Options, generate_batch
from draftwood.methods import Method
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.sources import Suffix
from draftwood.sources.int4_self_draft import Int4SelfDraftSource
from draftwood.stats import Stats, Step
from draftwood.testing import tiny_llama
from merged_trees import BUDGET

PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], [9, 2, 9], [1] * 40)


@pytest.fixture(scope="module")
def target() -> NativeModel:
    if not library.available():
        pytest.skip("there is no C++ compiler")
    model = NativeModel(tiny_llama(0, layers=6))
    if "int4" not in model.abilities:
        pytest.skip("this CPU has no fast products of 4 bits")
    return model


def steps_of(
    target: NativeModel, method: Method, prompt: Sequence[int], temperature: float, **cuts: float
) -> list[Step]:
    options = Options(Sampling(temperature, **cuts), 40, seed=3)
    request = engine.Sequence(target, method.drafter, method.verifier, prompt, options)
    return [step for _, step in generate_batch([request])]


def with_int4(target: NativeModel, source: Int4SelfDraftSource) -> Method:
    drafter = MultiSource((Suffix(), source), BUDGET)
    return Method(drafter, methods.build("auto", target).verifier)


def text(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_plain_decoding(
    temperature: float, cuts: dict[str, float], target: NativeModel
) -> None:
    plain = methods.build("plain", target)
    method = with_int4(target, Int4SelfDraftSource(1e-6, is_timed=False))
    for prompt in PROMPTS:
        steps = steps_of(target, method, prompt, temperature, **cuts)
        assert text(steps) == text(steps_of(target, plain, prompt, temperature, **cuts))
        assert "shadow" in Stats.of(steps).sources


def test_it_knows_what_will_be_drawn(target: NativeModel) -> None:
    """It sees the noise of the draws over the whole vocabulary, not over the likeliest alone."""
    method = with_int4(target, Int4SelfDraftSource(1e-6, is_timed=False))
    blind = with_int4(target, _Blind(1e-6, is_timed=False))
    found, without = (
        Stats.of([step for prompt in PROMPTS for step in steps_of(target, each, prompt, 1.0)])
        for each in (method, blind)
    )
    assert found.block_efficiency > 1.1 * without.block_efficiency


class _Blind(Int4SelfDraftSource):
    """Does not look at the draws."""

    def start(self, request: object) -> object:  # type: ignore[override]
        session = super().start(request)  # type: ignore[arg-type]
        session.rng = None  # type: ignore[attr-defined]
        return session


def test_dear_passes_are_asked_for_at_trials_alone(target: NativeModel) -> None:
    def drafted(pass_seconds: float) -> int:
        method = with_int4(target, Int4SelfDraftSource(pass_seconds, is_timed=False))
        found = [Stats.of(steps_of(target, method, each, 0.0)).sources for each in PROMPTS]
        return sum(each["shadow"].drafted for each in found if "shadow" in each)

    assert 0 < 10 * drafted(50.0) < drafted(1e-6)


def test_auto_with_the_weights_in_4_bits(target: NativeModel) -> None:
    def sources(method: str, model: NativeModel) -> list[str]:
        drafter = methods.build(method, model, curve=lambda nodes: 0.01).drafter
        assert isinstance(drafter, MultiSource)
        return [source.name for source in drafter.sources]

    assert sources("auto-shadow", target) == [*sources("auto", target), "shadow"]
    for name in ("auto-shadow", "propd"):  # which weigh what passes cost
        drafter: Any = methods.build(name, target, curve=lambda nodes: 0.01 * nodes).drafter
        assert drafter.budget.seconds(3) == 0.03
    found = methods.build("auto-shadow", target)
    for prompt in PROMPTS:
        plain = steps_of(target, methods.build("plain", target), prompt, 1.0)
        assert text(steps_of(target, found, prompt, 1.0)) == text(plain)
    narrow = NativeModel(tiny_llama(0, layers=6), "int4")
    with pytest.raises(ValueError, match="bfloat16"):
        methods.build("auto-shadow", narrow)
