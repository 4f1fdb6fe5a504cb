"""Best shape of a method, and the value of that choice on other prompts."""

import pytest

from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import block_efficiency
from draftwood_bench.report.best_shapes import best_shape, held_out
from draftwood_bench.report.tables import category_table, rsd_tables
from making import record, run_info


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


def test_a_category_says_how_many_prompts_it_has() -> None:
    records = [
        record(method, prompt, category=category)
        for method in ("plain", "auto")
        for prompt, category in (("1", "sums"), ("2", "sums"), ("3", "tales"))
    ]
    head = category_table(records, run_info(), 0.0).head
    assert head == ("method", "sums (n = 2)", "tales (n = 1)")
