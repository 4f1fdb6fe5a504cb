"""Costs of steps by part, in words."""

import pytest

from draftwood.costs.curve import Curve
from draftwood.costs.following import Following
from draftwood.stats import CURES, Stats, plain_pass

ALIKE = Curve((1,), (0.1,))


def stats_of(tokens: int, drafted: int, draft: float, target: float) -> Stats:
    seconds = {"prefill": 9.0, "draft": draft, "target": target, "verify": 0.1}
    return Stats(tokens=tokens, prefills=1, target_runs=10, drafted=drafted, seconds=seconds)


def test_a_step_is_told_by_part() -> None:
    (line,) = stats_of(11, 0, 0.0, 0.9).costs(wall=1.25).lines
    assert line == (
        "a step: model 90.00 ms (72%), drafting 0.00 ms (0%), verifying 10.00 ms (8%),"
        " the rest 25.00 ms (20%)"
    )


def test_without_a_clock_the_rest_is_left_out() -> None:
    (line,) = stats_of(11, 0, 0.0, 0.9).costs(curve=ALIKE).lines
    assert "the rest" not in line


@pytest.mark.parametrize(
    ("tokens", "verdict"),
    [
        (21, "drafts pay here: 2.00 tokens a step, which costs 1.50 plain steps (over 4.0 nodes"),
        (13, "drafts do not pay here: 1.20 tokens a step, which costs 1.50 plain steps"),
    ],
)
def test_drafts_are_weighed_against_plain_steps(tokens: int, verdict: str) -> None:
    lines = stats_of(tokens, 30, 0.2, 1.2).costs(curve=ALIKE).lines
    assert lines[1].startswith(verdict)
    assert "1.20, drafting 0.20, verifying 0.10)" in lines[1]
    assert f": {(tokens - 1) / 15:.2f} times plain decoding" in lines[1]


def test_a_text_of_its_prompts_token_alone_has_no_steps() -> None:
    assert Stats(tokens=1, prefills=1).costs().lines == []


@pytest.mark.parametrize(
    ("cause", "accepted", "seconds"),
    [
        ("few", 0, {"draft": 0.2, "target": 1.2, "verify": 0.1}),
        ("draft", 2, {"draft": 0.9, "target": 1.2, "verify": 0.1}),
        ("target", 2, {"draft": 0.1, "target": 1.9, "verify": 0.1}),
        ("verify", 2, {"draft": 0.1, "target": 1.2, "verify": 0.9}),
    ],
)
def test_what_would_make_drafts_pay_is_told(
    cause: str, accepted: int, seconds: dict[str, float]
) -> None:
    stats = Stats(13, 1, 10, 30, accepted, seconds={"prefill": 9.0, **seconds})
    told = stats.costs(stats.decode_seconds, curve=ALIKE).lines[1]
    assert told.endswith(f"; {CURES[cause]}")


def test_what_is_between_passes_a_plain_step_has_too() -> None:
    told = stats_of(21, 30, 0.2, 1.2).costs(wall=2.5, curve=ALIKE).lines[1]
    assert "which costs 1.25 plain steps" in told  # 0.25 of 0.2
    assert told.endswith(": 1.60 times plain decoding")


def test_a_plain_pass_behind_a_long_text_takes_longer() -> None:
    curve = Curve((1,), (0.1,), per_context_token=1e-4)
    assert plain_pass(curve, 100) == 0.1
    assert plain_pass(curve, 1128) == pytest.approx(0.2)
    assert plain_pass(Following(curve), 1128) == pytest.approx(0.2)
    assert plain_pass(lambda nodes: 0.3 * nodes, 1128) == 0.3


def test_drafts_that_pay_need_no_cure() -> None:
    stats = stats_of(31, 30, 0.2, 1.2)
    assert stats.costs(curve=ALIKE).lines[1].endswith("times plain decoding")
