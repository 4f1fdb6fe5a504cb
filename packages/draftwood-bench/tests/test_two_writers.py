"""Two writers: the knobs to measure, and the verdict on them."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from benchmarks import two_writers
from draftwood_choices.collaboration.rules import RandomTurns
from draftwood_choices.collaboration.rules.step_router import StepWeights
from draftwood_choices.frontier.points import AnswerRecord


def record(point: str, prompt: str, right: float, led: int, dropped: int = 0) -> AnswerRecord:
    numbers = (right, 100, led, dropped, 0, 0, 0, 0.0)
    return AnswerRecord(point, prompt, "right number", *numbers, "")


def records(point: str, right: float, led: int, dropped: int = 0) -> list[AnswerRecord]:
    """Ten answers, so many of them right."""
    return [record(point, str(n), float(n < 10 * right), led, dropped) for n in range(10)]


LEADER = records(two_writers.LEADER, 0.8, 100)


def test_the_best_knob_for_half_of_the_tokens_is_chosen() -> None:
    found = [*LEADER, *records("a", 0.6, 20), *records("b", 0.7, 50), *records("c", 0.8, 51)]
    points = dict.fromkeys("abc")
    assert two_writers.chosen(found, {"rule": points}) == {"rule": "b"}  # type: ignore[arg-type]
    # what was written for nothing counts, but for the oracle, which writes all
    found = [*LEADER, *records("a", 0.6, 20), *records("b", 0.7, 30, dropped=30)]
    points = dict.fromkeys("ab")
    assert two_writers.chosen(found, {"rule": points}) == {"rule": "a"}  # type: ignore[arg-type]
    assert two_writers.chosen(found, {"oracle": points}) == {"oracle": "b"}  # type: ignore[arg-type]


def test_the_cheapest_is_chosen_where_none_keeps_to_half() -> None:
    found = [*LEADER, *records("a", 0.8, 80), *records("b", 0.1, 70)]
    points = dict.fromkeys("ab")
    assert two_writers.chosen(found, {"rule": points}) == {"rule": "b"}  # type: ignore[arg-type]


def test_questions_that_a_point_has_not_answered_do_not_count() -> None:
    found = [*records("a", 0.5, 1), *records("b", 0.5, 1)[:4]]
    assert {each.prompt for each in two_writers.complete(found)} == set("0123")


def test_the_control_has_the_share_of_its_rule() -> None:
    found = two_writers.at_random("a", [*records("a", 0.5, 30), *records("b", 0.5, 90)])
    assert found == {"random at a's share": RandomTurns(0.3)}


@pytest.mark.parametrize(("right", "verdict"), [(0.8, "holds"), (0.6, "does not hold")])
def test_a_rule_holds_with_nine_tenths_of_the_accuracy(right: float, verdict: str) -> None:
    found = [*LEADER, *records("a", right, 50), *records("random at a's share", 0.5, 50)]
    told = two_writers.told("a", found)
    assert told.endswith(f"half: {verdict}")
    assert f"{right / 0.8:.2f} [" in told
    assert f"over random {right - 0.5:.2f}" in told
    told = two_writers.told("a", [*LEADER, *records("a", right, 60)])
    assert told.endswith("does not hold")  # too many tokens


def test_the_router_s_part_is_of_the_gain_over_the_follower() -> None:
    follower = records(two_writers.FOLLOWER, 0.2, 0)
    found = [*follower, *records("oracle", 0.7, 40), *records("router", 0.5, 40)]
    told = two_writers.of_oracle("router", "oracle", found)
    assert told.startswith("the router has 0.60 of")
    assert told.endswith(": holds")
    found = [*follower, *records("oracle", 0.7, 40), *records("router", 0.4, 40)]
    assert two_writers.of_oracle("router", "oracle", found).endswith("does not hold")
    found = [*follower, *records("oracle", 0.2, 40), *records("router", 0.4, 40)]
    assert "no part" in two_writers.of_oracle("router", "oracle", found)


def test_rules_that_meet_at_tokens_need_one_vocabulary(tmp_path: Path) -> None:
    StepWeights().save(tmp_path / "router.json")
    one, two = (two_writers.rules_of(tmp_path / "router.json", same) for same in (True, False))
    assert set(one) - set(two) == {"entropy-switch"}
