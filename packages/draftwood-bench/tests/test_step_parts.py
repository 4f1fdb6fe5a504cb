"""Parts of a step: what is counted where, and whole measurements on a tiny model."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import step_parts
from benchmarks.common.json_lines import append
from draftwood.costs.budget import Budget
from draftwood.drafters import MultiSource, Nothing
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.step import NativeStep, StepCaller
from draftwood.sources import NGrams, Suffix
from draftwood.sources.trained_head import TrainedHeadSource
from draftwood.testing import tiny_llama
from tiny_heads import tiny_eagle

NATIVE = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


@pytest.fixture
def measured() -> step_parts.Measured:
    target = NativeModel(tiny_llama(0, layers=4))
    head = TrainedHeadSource.of(tiny_eagle(target), target)
    auto = MultiSource((Suffix(), NGrams(), head), Budget())
    return step_parts.Measured(target, auto, [1, 5, 7, 3, 5, 7, 9, 2] * 4, steps=24)


@NATIVE
def test_all_parts_are_measured(measured: step_parts.Measured) -> None:
    found = step_parts.once(measured)
    assert found.keys() == {step_parts.PASS, *step_parts.BOUNDS}
    assert all(value > 0 for value in found.values())


@NATIVE
def test_seconds_of_the_head_are_not_outside_and_others_are(
    measured: step_parts.Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = step_parts.of_four(measured.auto)
    usual, _, drafted = step_parts.outside(measured, drafter, 0.0)
    assert drafted == step_parts.NODES
    result: Any = StepCaller.result

    def slowly(told: float, *given: Any) -> NativeStep:
        time.sleep(0.02)
        made = result(*given)
        return made._replace(drafter_seconds=made.drafter_seconds + told)

    monkeypatch.setattr(StepCaller, "result", lambda *given: slowly(0.0, *given))
    assert step_parts.outside(measured, drafter, 0.0)[0] > usual + 15
    monkeypatch.setattr(StepCaller, "result", lambda *given: slowly(0.02, *given))
    assert step_parts.outside(measured, drafter, 0.0)[0] < usual + 15


@NATIVE
def test_rows_hand_out_and_learn_in_turns(measured: step_parts.Measured) -> None:
    drafter = step_parts.of_four(measured.auto)
    with step_parts.without_rests(), step_parts.alternating() as kept:
        list(step_parts.run_all([measured.text(drafter, 0.0)]))
    assert min(map(len, kept.values())) > 10
    assert all(0 < step.learn_seconds < step.seconds["draft"] for step in kept[True])
    # without rows of logits to look through, paths alone are taken in
    paths, all_of_it = (median(step.learn_seconds for step in kept[each]) for each in (False, True))
    assert paths < all_of_it


@NATIVE
def test_plain_decoding_drafts_nothing(measured: step_parts.Measured) -> None:
    seconds, a_pass, drafted = step_parts.outside(measured, Nothing(), 1.0)
    assert (seconds > 0, a_pass > 0, drafted) == (True, True, 0)


def test_rows_show_medians_beside_bounds(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for value in (1.02, 1.5, 1.01):
        facts = {"model": "m", "processor": "p", "commit": "c"}
        append(path, {**facts, "part": step_parts.LEARNING, "value": value})
        append(path, {**facts, "part": step_parts.PASS, "value": value})
    learning, a_pass = step_parts.rows(path)
    assert (learning["median"], learning["at most"]) == ("1.020", "1.03")
    assert (a_pass["median"], a_pass["at most"]) == ("1.020 ms", "")
