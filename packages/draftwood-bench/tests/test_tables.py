"""Best shape of a method, and the value of that choice on other prompts."""

import pytest

from draftwood_bench.records.files import Record
from draftwood_bench.records.notes import notes
from draftwood_bench.records.statistics import block_efficiency
from draftwood_bench.report.best_shapes import best_shape, held_out, worth_timing
from draftwood_bench.report.orderings import orderings, seconds
from draftwood_bench.report.scores import beside_plain, quality_table
from draftwood_bench.report.table import Table
from draftwood_bench.report.tables import category_table, load_table, rsd_tables
from making import record, run_info

CHAIN = (("rsd-s", 20), ("speculative", 50))
"""Methods, and the runs in which each writes one text."""


def cells(runs: dict[str, tuple[int, ...]]) -> list[Record]:
    """A record of 10 tokens for each shape and prompt, in so many runs."""
    return [
        record(
            "rsd-c",
            f"p{number}",
            runs=count,
            cell=shape,
            shape=f"Widths(widths={shape})",
            at="budget 6",
        )
        for shape, counts in runs.items()
        for number, count in enumerate(counts)
    ]


def test_a_shape_that_is_best_by_chance_gains_nothing_on_other_prompts() -> None:
    # each is best on one half of the prompts
    records = cells({"(2, 1)": (2, 10, 2, 9), "(3,)": (10, 2, 10, 2)})
    best = best_shape(records, "rsd-c", "budget 6")
    assert best is not None
    shown, found = block_efficiency(best), held_out(records, "rsd-c", "budget 6")
    assert shown is not None
    assert found is not None
    assert shown.value == pytest.approx(40 / 23)
    assert found.value == pytest.approx(40 / 39)  # 10 + 10 runs of one shape, 10 + 9 of the other
    assert found.prompts == 4


def test_a_shape_that_is_best_everywhere_stands_as_it_is() -> None:
    records = cells({"(2, 1)": (2, 3, 4, 5), "(3,)": (6, 7, 8, 9)})
    found = held_out(records, "rsd-c", "budget 6")
    assert found is not None
    assert found.value == pytest.approx(40 / 14)


def test_nothing_is_held_out_where_nothing_was_chosen() -> None:
    assert held_out(cells({"(3,)": (2, 3)}), "rsd-c", "budget 6") is None
    assert held_out([], "rsd-c", "budget 6") is None


def test_tables_at_a_fixed_budget_say_how_the_shape_was_chosen() -> None:
    table = rsd_tables(
        cells({"(2, 1)": (2, 10, 2, 9), "(3,)": (10, 2, 10, 2)}), run_info(protocol="rsd")
    )[0]
    assert "best shape for these prompts; held out: chosen on the other half" in table.title
    assert table.rows[0][1].endswith("(2,1); held out 1.03")


def of_two_methods(runs: int) -> list[Record]:
    """Two prompts of two methods at one budget, plain decoding beside them."""
    here = [
        record(method, prompt, runs=runs, at="budget 6", shape="Widths(widths=(3,))")
        for method in ("rsd-s", "rsd-c")
        for prompt in "12"
    ]
    return [*(record("plain", prompt, runs=30) for prompt in "12"), *here]


@pytest.mark.parametrize(("runs", "is_told"), [(9, False), (10, True)])
def test_few_passes_tell_nothing_at_a_fixed_budget(runs: int, is_told: bool) -> None:
    records, run = of_two_methods(runs), run_info(protocol="rsd")
    found = {table.title.partition(": ")[2]: table for table in rsd_tables(records, run)}
    (blocks,) = [table for title, table in found.items() if title.startswith("block efficiency")]
    for table in (blocks, found["MBSU"]):
        assert [row[1] != "-" for row in table.rows] == [is_told, is_told]
    assert bool(orderings(records).rows) == is_told
    assert any("fewer than 20" in note for note in notes(records, run)) != is_told


def test_categories_without_a_table_hide_nothing() -> None:
    records = [
        record(method, prompt, runs=12, category=prompt, at="batch 1")
        for method in ("plain", "auto")
        for prompt in "12"
    ]
    assert not any("fewer than 20" in note for note in notes(records, run_info(protocol="load")))
    assert any("fewer than 20" in note for note in notes(records, run_info()))


def test_a_lossy_method_under_load_is_called_so() -> None:
    times = {"arrived": 0.0, "started": 0.0, "first_token": 0.5, "finished": 1.0}
    records = [
        record(method, at="batch 1", load=times, lossless=method == "plain")
        for method in ("plain", "typical")
    ]
    table = load_table(records, run_info(protocol="load"), 0.0)
    assert [row[0] for row in table.rows] == ["plain", "typical (lossy)"]


def test_a_category_says_how_many_prompts_it_has() -> None:
    records = [
        record(method, prompt, category=category)
        for method in ("plain", "auto")
        for prompt, category in (("1", "sums"), ("2", "sums"), ("3", "tales"))
    ]
    head = category_table(records, run_info(), 0.0).head
    assert head == ("method", "sums (n = 2)", "tales (n = 1)")


@pytest.mark.parametrize(("count", "slow"), [(1, 1), (20, 19), (40, 38), (21, 20)])
def test_so_many_of_a_hundred_requests_are_done_within(count: int, slow: int) -> None:
    records = [
        record(
            prompt=str(number),
            seconds_end_to_end=float(number),
            load={"arrived": 0.0, "started": 0.0, "first_token": 0.5, "finished": float(number)},
        )
        for number in range(1, count + 1)
    ]
    table = load_table(records, run_info(protocol="load"), 0.0)
    assert dict(zip(table.head, table.rows[0], strict=True))["95 % within"] == f"{slow:.2f}"


def lengths(runs: dict[int, int], method: str = "rsd-c", temperature: float = 1.0) -> list[Record]:
    """A record of 11 tokens for each length, in so many runs."""
    return [
        record(
            method,
            runs=count,
            cell=f"{method} | length {length}",
            at=f"length {length}",
            draft_steps=length,
            temperature=temperature,
        )
        for length, count in runs.items()
    ]


def test_worth_timing_is_what_pays_after_drafting() -> None:
    """A longer draft with hardly fewer passes loses to its own price."""
    records = lengths({2: 5, 5: 4})
    assert worth_timing(records, None) == ["rsd-c | length 5"]
    assert worth_timing(records, 0.3) == ["rsd-c | length 2"]  # 2.0 / 1.6 against 2.5 / 2.5
    assert worth_timing([*records, *lengths({2: 8, 5: 2}, temperature=0.3)], 0.3) == [
        *("rsd-c | length 2", "rsd-c | length 5"),
    ]
    shapes = cells({"(2, 1)": (2, 3), "(3,)": (6, 7)})
    assert worth_timing(shapes, 0.3) == ["(2, 1)"]


def timed(method: str, rates: tuple[float, ...]) -> list[Record]:
    return [
        record(
            method,
            f"p{number}",
            cell=method,
            at="budget 6",
            temperature=1.0,
            stats={"tokens": 21, "target_runs": 10, "tokens_per_second": rate},
        )
        for number, rate in enumerate(rates)
    ]


def test_trees_stand_beside_the_chain_in_seconds() -> None:
    records = [*timed("rsd-s", (12.0, 12.0)), *timed("speculative", (10.0, 10.0))]
    (row,) = [row for row in seconds(records).rows if row[0] == "rsd-s over speculative"]
    assert row[1:] == ("1", "budget 6", "1.20 [1.20, 1.20]")
    claims = {row[0] for row in orderings(records).rows}
    assert claims == {"rsd-s >= speculative"}
    assert seconds(cells({"(3,)": (6, 7)})).rows == ()


def test_one_prompt_shows_no_ordering_clearly() -> None:
    records = [record(method, "p", runs=runs, cell=method, at="length 3") for method, runs in CHAIN]
    (row,) = orderings(records).rows
    assert row[3:6] == ("1 of 1", "0 of 1", "0 of 1")


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    table = Table("", ("a|b",), (("rsd | length 3",),))
    assert table.markdown().splitlines() == [r"| a\|b |", "| --- |", r"| rsd \| length 3 |"]


def scored(method: str, values: tuple[float, ...]) -> list[Record]:
    quality = [{"name": "BLEU", "value": value} for value in values]
    return [
        record(method, f"p{number}", temperature=1.0, quality=each)
        for number, each in enumerate(quality)
    ]


def test_quality_stands_beside_plain_decoding_with_an_interval() -> None:
    records = [*scored("plain", 5 * (10.0,)), *scored("rsd-s", 5 * (12.0,))]
    found = beside_plain(records, "rsd-s", "BLEU")
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    table = quality_table(records, 1.0)
    assert table.rows == (
        ("plain", "10.00 [10.00, 10.00]", ""),
        ("rsd-s", "12.00 [12.00, 12.00]", "+2.00 [+2.00, +2.00]"),
    )
    assert quality_table(scored("plain", (10.0, 30.0)), 1.0).rows == ()  # too few prompts
    assert beside_plain(scored("rsd-s", (1.0,)), "rsd-s", "BLEU") is None
