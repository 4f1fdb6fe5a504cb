"""Drafters that merge sources, on a machine that has no C++ library."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from draftwood import methods
from draftwood.drafters import (
    Drafter,
    MultiSource,
    Nothing,
    PromptLookup,
    SuffixDecoding,
    multi_source,
)
from draftwood.drafters.resources import Later
from draftwood.engine import Options, generate
from draftwood.native import compiler, library
from draftwood.sampling import Sampling
from draftwood.stats import Step
from draftwood.testing import TableModel
from draftwood.verifiers import Match

PROMPT = [1, 2, 3, 1, 2, 3, 1]
COUNTING = TableModel(torch.eye(12).roll(1, 1) * 9)


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(library, "available", lambda: False)
    monkeypatch.setattr(library, "why_missing", compiler.no_compiler)
    monkeypatch.delenv("CXX", raising=False)
    multi_source._say_what_is_missing.cache_clear()
    yield
    multi_source._say_what_is_missing.cache_clear()


def steps_of(drafter: Drafter, temperature: float) -> list[Step]:
    options = Options(Sampling(temperature), 40, seed=3)
    return list(generate(COUNTING, drafter, Match(), PROMPT, options))


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", [MultiSource, SuffixDecoding])
def test_they_draft_by_prompt_lookup_alone_and_say_so_once(
    make: type[Drafter], temperature: float
) -> None:
    with pytest.warns(
        UserWarning,
        match=r"by prompt lookup alone.* library is missing: there is no C\+\+ compiler; install",
    ) as said:
        steps, again = (steps_of(make(), temperature) for _ in range(2))
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert tokens(steps) == tokens(again) == tokens(steps_of(Nothing(), temperature))
    drafted, lookup = (
        [step.tree.token_list for step in each if step.tree is not None]
        for each in (steps, steps_of(PromptLookup(), temperature))
    )
    assert drafted == lookup
    assert max(map(len, drafted)) > 5


def test_auto_measures_neither_a_curve_nor_a_prior() -> None:
    def fail(nodes: int) -> float:
        raise AssertionError("a curve was asked for")

    method = methods.build("auto", COUNTING, curve=fail)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = list(generate(COUNTING, method.drafter, method.verifier, PROMPT, Options()))
    assert any(step.drafted for step in steps)


def test_figures_are_made_for_methods_that_read_them_alone() -> None:
    made: list[str] = []

    def curve() -> Callable[[int], float]:
        made.append("curve")
        return float

    for name in ("auto", "suffix"):
        methods.build(name, COUNTING, curve=Later(curve), prior=Later(lambda: made.append("prior")))
        assert made == ([] if name == "auto" else ["curve"])
