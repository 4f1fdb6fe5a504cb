"""Every figure, from records written down by hand."""

import json
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from draftwood_bench.cli.show import _found
from draftwood_bench.records import statistics
from draftwood_bench.records.files import Record
from draftwood_bench.records.notes import failures, notes
from draftwood_bench.records.statistics import (
    mbsu,
    median_ratio,
    paired,
    pooled,
    pooled_ratio,
    summaries,
    throughput,
)
from making import record, run_info

TIE = {
    "position": 3,
    "plain_token": 1,
    "other_token": 2,
    "margin": 0.01,
    "tolerance": 0.1,
    "tie": True,
}
PLAIN = [record("plain", prompt, runs=10) for prompt in "123"]  # 10 tokens a second
AUTO = [
    record("auto", prompt, runs=runs) for prompt, runs in zip("123", (5, 4, 2), strict=True)
]  # 20, 25, 50


def summary_of(records: list[Record], method: str = "auto"):
    return next(each for each in summaries(records, run_info()) if each.method == method)


def test_figures_of_one_cell() -> None:
    found = summary_of([*PLAIN, *AUTO])
    assert found.tokens == 33
    assert found.block_efficiency is not None
    assert found.block_efficiency.value == pytest.approx(30 / 11)
    assert found.guesses_per_run == 2
    assert found.tokens_per_second == pytest.approx(30 / 1.1)
    assert found.end_to_end == pytest.approx(33 / 2.6)
    assert found.roofline == pytest.approx(30 / 1.1 / 100)
    assert (found.same, found.ties, found.failures, found.law) == (3, 0, 0, None)
    plain = summary_of([*PLAIN, *AUTO], "plain")
    assert plain.speed_up is None
    assert plain.block_efficiency is not None
    assert plain.block_efficiency.value == 1


def test_decoding_takes_all_seconds_beside_the_prompts_pass() -> None:
    one = replace(AUTO[0], stats={**AUTO[0].stats, "seconds": {"prefill": 0.3}})
    spent = (one.seconds_end_to_end or 0.0) - 0.3
    assert summary_of([*PLAIN, one]).tokens_per_second == pytest.approx(10 / spent)
    shared = replace(one, seconds_end_to_end=None)  # of requests that shared passes
    assert summary_of([*PLAIN, shared]).tokens_per_second == one.stats["tokens_per_second"]


def test_decoding_under_load_begins_with_the_first_token() -> None:
    load = {"arrived": 1.0, "started": 6.0, "first_token": 7.0, "finished": 9.0}
    stats = {**AUTO[0].stats, "seconds": {"prefill": 0.5}}
    waited = replace(AUTO[0], load=load, stats=stats, seconds_end_to_end=8.0)
    assert statistics.decoding(waited) == (10, 2.0)
    assert statistics.whole(waited) == (11, 8.0)


def test_one_prompt_bounds_nothing() -> None:
    found = summary_of([PLAIN[0], AUTO[0]])
    assert found.speed_up is not None
    assert (found.speed_up.low, found.speed_up.high) == (-inf, inf)
    assert str(found.speed_up) == "2.00"
    assert str(found.block_efficiency) == "2.00"
    told = _found([PLAIN[0], AUTO[0]], run_info())
    assert json.loads(json.dumps(told, allow_nan=False))["summaries"][1]["speed_up"] == {
        **{"value": 2.0, "low": None, "high": None, "prompts": 1}
    }


def test_speed_ups_are_paired_by_prompt() -> None:
    found = summary_of([*PLAIN, *AUTO])
    assert found.speed_up is not None
    assert (found.speed_up.value, found.speed_up.prompts) == (pytest.approx(2.5), 3)
    assert (found.speed_up.low, found.speed_up.high) == pytest.approx((2, 5))
    assert found.total_speed_up is not None
    # whole requests, prompts included: of 1.5 seconds each, and 1 + 0.9 + 0.7
    assert found.total_speed_up.value == pytest.approx(4.5 / 2.6)
    assert found.speed_up_end_to_end is not None
    assert found.speed_up_end_to_end.value == pytest.approx(1.5 / 0.9)
    alone = summary_of([PLAIN[0], *AUTO])
    assert alone.speed_up is not None
    assert (alone.speed_up.value, alone.speed_up.prompts) == (pytest.approx(2), 1)
    assert summary_of(AUTO).speed_up is None


def test_a_late_answer_is_paired_with_what_was_measured_beside_it() -> None:
    peers = [record("peer:one", prompt, runs=5) for prompt in "123"]
    at_once = summary_of([*PLAIN, *peers], "peer:one")
    beside = {
        "stats": {**PLAIN[2].stats, "tokens_per_second": 5.0},
        "seconds_end_to_end": 4.0,
    }  # a slower hour
    late = summary_of([*PLAIN, *peers[:2], replace(peers[2], beside=beside)], "peer:one")
    for found, highest, in_total in ((at_once, 2, 4.5 / 3), (late, 4, 7 / 3)):
        assert found.speed_up is not None
        assert found.total_speed_up is not None
        assert (found.speed_up.high, found.total_speed_up.value) == pytest.approx(
            (highest, in_total)
        )
    assert late.speed_up_end_to_end is not None
    assert late.speed_up_end_to_end.high == pytest.approx(4.0)  # 4 seconds over 1
    assert summary_of(
        [*PLAIN, replace(peers[2], beside=beside)], "plain"
    ).tokens_per_second == pytest.approx(10)


def test_turns_and_rounds_of_a_prompt_stand_together() -> None:
    both = [replace(each, round=turn) for each in [*PLAIN, *AUTO] for turn in (0, 1)]
    found, once = summary_of(both), summary_of([*PLAIN, *AUTO])
    assert (
        found.block_efficiency == once.block_efficiency
    )  # as sure as before: there are no more prompts
    assert found.speed_up == once.speed_up
    assert len(paired(AUTO, [replace(each, turn=1) for each in PLAIN])) == 0


def test_no_speed_up_where_a_text_differs() -> None:
    wrong = replace(AUTO[1], identical_to_plain=False, divergence={**TIE, "tie": False})
    found = summary_of([*PLAIN, AUTO[0], wrong, AUTO[2]])
    assert (found.same, found.ties, found.failures) == (2, 0, 1)
    assert (found.speed_up, found.total_speed_up, found.speed_up_end_to_end) == (None, None, None)
    assert found.divergence is not None
    assert (found.divergence["prompt"], found.divergence["margin"]) == ("2", 0.01)


def test_ties_take_no_part_in_the_speed_up() -> None:
    found = summary_of(
        [*PLAIN, *AUTO[:2], replace(AUTO[2], identical_to_plain=False, divergence=TIE)]
    )
    assert (found.same, found.ties, found.failures) == (2, 1, 0)
    assert found.speed_up is not None
    assert (found.speed_up.value, found.speed_up.prompts) == (pytest.approx(2.25), 2)


def test_a_lossy_method_gets_no_speed_up_either() -> None:
    wrong = [
        replace(each, lossless=False, identical_to_plain=False, divergence={**TIE, "tie": False})
        for each in AUTO
    ]
    assert summary_of([*PLAIN, *wrong]).speed_up is None


def test_peers_are_told_beside_whatever_they_write() -> None:
    peer = [
        replace(each, method="peer:x", cell="peer:x | plain", identical_to_plain=False)
        for each in AUTO
    ]
    run = run_info(peers={"x": {"weight_bytes": 2 * 10**6}})
    found = next(each for each in summaries([*PLAIN, *peer], run) if each.method == "peer:x")
    assert (found.same, found.answers, found.failures) == (0, 3, 0)
    assert found.speed_up is not None
    assert found.roofline == pytest.approx(2 * 30 / 1.1 / 100)


def test_categories_are_compared_within_themselves() -> None:
    records = [replace(each, category=each.prompt) for each in [*PLAIN, *AUTO]]
    found = {
        each.category: each
        for each in summaries(records, run_info(), by_category=True)
        if each.method == "auto"
    }
    assert {category: each.speed_up.value for category, each in found.items() if each.speed_up} == {
        "1": pytest.approx(2),
        "2": pytest.approx(2.5),
        "3": pytest.approx(5),
    }


def test_intervals_narrow_with_the_number_of_prompts() -> None:
    rng = np.random.default_rng(0)

    def width(count: int) -> float:
        runs = rng.integers(2, 10, count)
        cells = [
            [record(m, str(n), runs=int(r)) for n, r in enumerate(runs)] for m in ("auto", "plain")
        ]
        other = [replace(each, stats={**each.stats, "target_runs": 10}) for each in cells[1]]
        found = pooled_ratio(paired(cells[0], other), statistics.per_run)
        assert found is not None
        assert found.low < found.value < found.high
        return found.high - found.low

    assert width(400) < width(25) / 2


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Ratios of 60 prompts around a median of 2; 95 of 100 intervals should hold it, fewer than 85
    would be a bug.
    """
    rng, covered = np.random.default_rng(1), 0
    for _ in range(100):
        speeds = 2 * np.exp(rng.normal(0, 0.3, 60))
        auto = [record("auto", str(n)) for n in range(60)]
        plain = [record("plain", str(n)) for n in range(60)]
        for each, speed in zip(auto, speeds, strict=True):
            each.stats["tokens_per_second"] = 20 * float(speed)
        found = median_ratio(paired(auto, plain), statistics.decoding)
        assert found is not None
        covered += found.low <= 2 <= found.high
    assert 85 <= covered <= 100


def test_memory_bound_speed_up() -> None:
    assert mbsu(3.0, 4, 0.05) == pytest.approx(2.5)
    assert mbsu(3.0, None, None) == 3.0  # no draft model is read
    assert mbsu(3.0, 4, None) is None


def test_acceptance_is_weighed_by_runs() -> None:
    bounds = [(0.2, 0.4, 10), (0.8, 1.0, 30)]
    auto = [record("auto", prompt) for prompt in "12"]
    for each, (accepted, bound, runs) in zip(auto, bounds, strict=True):
        each.stats.update(root_acceptance=accepted, root_acceptance_bound=bound, bounded_runs=runs)
    found = summary_of([*PLAIN, *auto])
    assert (found.acceptance, found.bound) == (pytest.approx(0.65), pytest.approx(0.85))


def drawn(records: list[Record], **more: Any) -> list[Record]:
    return [replace(each, temperature=1.0, identical_to_plain=None, **more) for each in records]


def test_laws_are_joined() -> None:
    law = {"p_value": 0.1, "samples": 1000}
    found = summary_of(drawn(AUTO[:2], verifier="rejection", law=law))
    assert (found.same, found.compared) == (None, 0)
    assert found.law == pytest.approx(0.0561, abs=1e-4)


def test_a_law_that_is_not_the_models_fails_the_run() -> None:
    wrong = drawn(AUTO, verifier="rejection", law={"p_value": 1e-9, "samples": 1000})
    assert failures([*drawn(PLAIN), *wrong], run_info())
    assert "the next token does not follow the model's distribution" in " ".join(
        notes([*drawn(PLAIN), *wrong], run_info())
    )


def test_no_p_value_is_told_of_few_samples_or_of_a_method_that_matches() -> None:
    assert (
        summary_of(drawn(AUTO, verifier="rejection", law={"p_value": 0.1, "samples": 999})).law
        is None
    )
    assert summary_of(drawn(AUTO, law={"p_value": 1e-9, "samples": 1000})).law is None


def test_drawn_texts_of_a_method_that_matches_are_compared() -> None:
    plain = drawn(PLAIN)
    found = summary_of([*plain, *drawn(AUTO)])
    assert (found.same, found.compared, found.failures) == (3, 3, 0)
    assert found.speed_up is not None
    wrong = [*drawn(AUTO[:2]), *drawn(AUTO[2:], token_ids=[1] * 10 + [2])]
    found = summary_of([*plain, *wrong])
    assert (found.same, found.compared, found.failures, found.speed_up) == (2, 3, 1, None)
    assert failures([*plain, *wrong], run_info())  # so the run fails
    assert failures([*plain, *wrong], run_info(dtype="int8+int8-cache"))
    assert not failures([*plain, *wrong], run_info(dtype="bfloat16"))
    assert "1 of 3 texts are not plain decoding's" in " ".join(
        notes([*plain, *wrong], run_info(dtype="bfloat16"))
    )


def test_what_cannot_be_compared_is_not() -> None:
    plain = drawn(PLAIN)
    assert summary_of([*plain, *drawn(AUTO, verifier="rejection")]).same is None
    assert summary_of([*plain, *drawn(AUTO, token_ids=None)]).same is None
    assert summary_of([*plain, *drawn(AUTO, seed=9)]).same is None


def test_throughput_counts_from_the_first_arrival_to_the_last_token() -> None:
    loads = [{"arrived": 1.0, "finished": 3.0}, {"arrived": 2.0, "finished": 5.0}]
    once = [replace(AUTO[0], load=load) for load in loads]
    assert throughput(once) == pytest.approx(22 / 4)
    again = [replace(record, round=1) for record in once]  # its seconds count from its own start
    assert throughput([*once, *again]) == pytest.approx(44 / 8)
    assert throughput(AUTO) is None


def test_numbers_that_nobody_knows_are_none() -> None:
    old = [
        replace(each, stats={"tokens": 64, "target_runs": 40}, seconds_end_to_end=None)
        for each in AUTO
    ]
    found = summary_of(old)
    assert (found.tokens_per_second, found.end_to_end, found.guesses_per_run, found.roofline) == (
        None,
    ) * 4
    assert pooled([], statistics.decoding) is None
