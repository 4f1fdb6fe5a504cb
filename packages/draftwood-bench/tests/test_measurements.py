"""Measurements without prompts: what they list, refuse, compute and show."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.models.native import NativeModel
from draftwood.stats import Step
from draftwood.testing import tiny_llama
from draftwood_bench.plan.measurements import (
    FormatQuality,
    Measurement,
    Overhead,
    SameFile,
    VerifyCost,
)
from draftwood_bench.plan.order import MeasurementOrder
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_text
from draftwood_bench.plan.protocols import Settings, SpecBench, as_json, measurement
from draftwood_bench.plan.units import Unit
from draftwood_bench.records.figures import figures
from draftwood_bench.records.files import Record
from draftwood_bench.records.notes import notes
from draftwood_bench.report.overview import facts
from draftwood_bench.report.tables import tables
from draftwood_bench.run import format_quality, overhead, verify_cost
from draftwood_bench.run.blank import blank
from draftwood_bench.run.measurements import _device, work_of
from draftwood_bench.run.runner import _hours, units_of
from draftwood_bench.run.same_file import agree
from making import run_info

MEASUREMENTS: list[Measurement] = [
    Overhead(steps=3),
    Overhead(parts=("native", "prepared"), wide=2048),
    VerifyCost(("int8", "float32"), (1, 4), (16, 8)),
    FormatQuality(("int8",), window=8, windows=3),
    SameFile(("llama.cpp", "draftwood"), rounds=1),
]


@pytest.mark.parametrize("asked", MEASUREMENTS, ids=lambda asked: asked.name)
def test_json_both_ways(asked: Measurement) -> None:
    assert measurement(json.loads(json.dumps(as_json(asked)))) == asked


@pytest.mark.parametrize("asked", MEASUREMENTS, ids=lambda asked: asked.name)
def test_a_measurement_lists_as_many_records_as_it_counts_and_all_differ(
    asked: Measurement,
) -> None:
    models = () if isinstance(asked, Overhead) else ("one", "two")
    work = work_of(MeasurementOrder(asked, models, Path("none")), text="")
    keys = [record.key for piece in work.pieces for record in piece.records]
    assert len(set(keys)) == len(keys) == asked.count(max(1, len(models)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Overhead(steps=0), "steps must be at least 1, got 0"),
        (lambda: Overhead(parts=("none",)), "no part 'none'; parts are prepared, native"),
        (lambda: Overhead(vocab=3), "vocab must be at least 1024, got 3"),
        (lambda: VerifyCost(nodes=(2, 0)), "nodes must be at least 1, got 0"),
        (lambda: VerifyCost(contexts=(0,)), "contexts must be at least 1, got 0"),
        (lambda: VerifyCost(contexts=()), "give at least one of contexts"),
        (lambda: VerifyCost(paths=()), "give at least one of paths"),
        (lambda: FormatQuality(formats=()), "give at least one of formats"),
        (lambda: FormatQuality(window=1), "window must be at least 2, got 1"),
        (lambda: FormatQuality(windows=0), "windows must be at least 1, got 0"),
        (lambda: measurement({"protocol": "rsd"}), "no protocol 'rsd'; there are overhead, cost"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_overhead_leaves_out_the_time_of_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = overhead.PreparedModel.answer

    def slowly(model: overhead.PreparedModel, tokens: torch.Tensor, since: float) -> Any:
        time.sleep(0.05)
        return answer(model, tokens, since)

    monkeypatch.setattr(overhead.PreparedModel, "answer", slowly)
    bench = overhead.OverheadBench(Overhead(vocab=1024, steps=2))
    chains = next(record for record in overhead.records(bench.asked) if record.method == "rsd-c")
    (stats,) = bench.measure([chains])
    assert stats["nodes"] == 64
    assert stats["milliseconds"] < 150  # four forward passes of the draft model alone take 200


def test_native_steps_are_made_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its clocks know the passes of what drafts."""
    told: dict[str, list[tuple[float, float, int]]] = {}
    outside = overhead.NativeModels.outside

    def kept(models: overhead.NativeModels, step: Step, seconds: float) -> float:
        spent = outside(models, step, seconds)
        told[wanted.cell].append((step.drafter_seconds, spent, step.drafted))
        return spent

    monkeypatch.setattr(overhead, "LAYERS", 2)
    monkeypatch.setattr(overhead.NativeModels, "outside", kept)
    bench = overhead.OverheadBench(Overhead(vocab=1024, steps=3, parts=("native",)))
    for wanted in overhead.records(bench.asked):
        told[wanted.cell] = []
        bench.measure([wanted])
        for drafter, _, drafted in told[wanted.cell][2:]:
            assert (drafter > 0) == (drafted > 0) == (wanted.method != "plain")
        assert sum(spent for _, spent, _ in told[wanted.cell]) > 0
    assert len(told) == 9


def test_native_rows_of_steps_count_whole() -> None:
    row = [9.3, -3.0, -3.0, -3.0]  # 0.3 outside passes of 3.0, four of them in a row
    assert overhead.whole_rows([*row, *row, *row], 4) == pytest.approx([0.075, 0.075])
    assert overhead.whole_rows([*row, *row, *row], 5) == pytest.approx([0.075])
    longer = [*row[:3], *row, 12.3, -4.0, -4.0, -4.0, 5.0]  # rows of 3, 4 and 4 steps
    assert overhead.whole_rows(longer, 3)[1:] == pytest.approx([0.075, 0.075])
    assert overhead.whole_rows([0.1, 0.2, 0.3], 1) == [0.1, 0.2]  # each its own row
    assert overhead.whole_rows([0.1], 24) == [0.1]


def window_of(model: torch.nn.Module, tokens: list[int]) -> float:
    """Perplexity as Transformers computes it."""
    inputs = torch.tensor([tokens])
    return math.exp(model(inputs, labels=inputs).loss.item())


class Loaded:
    """Stand-in for the result of ``load_model``: a tiny model and a text of numbers."""

    def __init__(self, name: str, dtype: str = "float32", device: str | None = None) -> None:
        whole = tiny_llama(0, vocab=50)
        self.model = NativeModel(whole, "int8" if dtype == "int8" else None)
        self.tokenizer = lambda text: {"input_ids": [int(word) for word in text.split()]}


def test_quality_is_transformers_perplexity_and_the_divergence_of_whole_distributions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("load_model", "load_format"):
        monkeypatch.setattr(format_quality, name, Loaded)
    tokens = torch.randint(50, (80,), generator=torch.Generator().manual_seed(1)).tolist()
    asked = FormatQuality(("int8",), window=16, windows=4)
    formats = format_quality.Formats(asked, None, " ".join(map(str, tokens)))
    records = format_quality.records(asked, "tiny", 2)
    exact, rounded = formats.measure(2, records)
    window = tokens[32:48]  # 64 tokens are left before the last window, 16 for each
    assert formats.window(2) == window
    assert exact["perplexity"] == pytest.approx(window_of(tiny_llama(0, vocab=50), window), 1e-4)
    assert (exact["divergence"], exact["same_likeliest"], exact["tokens"]) == (0.0, 1.0, 15)
    assert 0 < rounded["divergence"] < 0.1
    assert rounded["perplexity"] != exact["perplexity"]
    assert formats.measure(2, records[1:]) == [rounded]  # by itself as beside others


def test_figures_count_every_token_once() -> None:
    one = {"tokens": 10, "perplexity": 2.0, "divergence": 0.1, "same_likeliest": 1.0}
    other = {"tokens": 30, "perplexity": 32.0, "divergence": 0.3, "same_likeliest": 0.6}
    records = [
        replace(blank("int8", model="tiny", prompt=f"window {n}"), stats=stats)
        for n, stats in enumerate((one, other))
    ]
    (found,) = figures(records)
    assert found["tokens"] == 40
    assert found["perplexity"] == pytest.approx(16.0)  # 2 ** ((1 + 3 * 5) / 4)
    assert found["divergence"] == pytest.approx(0.25)
    assert found["same_likeliest"] == pytest.approx(0.7)


def cost_records(asked: VerifyCost, model: str = "tiny") -> list[Record]:
    """Milliseconds are nodes times context, and twice that for Transformers."""
    found = []
    for context in asked.contexts:
        for record in verify_cost.records(asked, model, context):
            factor = 2 if record.method == "transformers" else 1
            stats = {"milliseconds": float(factor * (record.nodes or 0) * context)}
            found.append(replace(record, stats=stats | {"cache_bytes": 3_000_000}))
    return found


def test_costs_by_nodes_and_by_context() -> None:
    asked = VerifyCost(("transformers", "int8"), (1, 4, 8), (10,))
    (by_nodes,) = tables(cost_records(asked), run_info(protocol="cost"))
    assert by_nodes.head == ("nodes", "1", "4", "8")
    assert by_nodes.rows == (
        ("transformers: ms", "20.0", "80.0", "160.0"),
        ("transformers: T(n)/T(1)", "1.00", "4.00", "8.00"),
        ("int8: ms", "10.0", "40.0", "80.0"),
        ("int8: T(n)/T(1)", "1.00", "4.00", "8.00"),
        ("int8: transformers / this", "2.00", "2.00", "2.00"),
    )
    asked = VerifyCost(("int8",), (1, 4), (10, 20))
    (by_context,) = tables(cost_records(asked), run_info(protocol="cost"))
    assert by_context.rows == (("10", "10.0", "40.0", "3"), ("20", "20.0", "80.0", "3"))
    both = [*cost_records(asked), *cost_records(asked, "other")]
    titles = [table.title.partition(":")[0] for table in tables(both, run_info(protocol="cost"))]
    assert titles == ["tiny", "other"]


def test_costs_that_are_not_measured_yet_leave_their_cells_empty() -> None:
    records = cost_records(VerifyCost(("transformers", "int8"), (1, 4, 8), (10,)))
    (whole,) = tables(records, run_info(protocol="cost"))
    for place, lost in enumerate(records):
        left = [*records[:place], *records[place + 1 :]]
        (table,) = tables(left, run_info(protocol="cost"))
        column = table.head.index(str(lost.nodes))
        assert dict(zip(table.head, table.rows[0], strict=True)).keys() == {*whole.head}
        assert next(row for row in table.rows if row[0] == f"{lost.method}: ms")[column] == ""
        (again,) = tables([*left, lost], run_info(protocol="cost"))
        assert sorted(again.rows) == sorted(whole.rows)
    records = cost_records(VerifyCost(("int8",), (1, 4), (10, 20)))
    (table,) = tables(records[1:], run_info(protocol="cost"))
    assert table.rows == (("10", "", "40.0", "3"), ("20", "20.0", "80.0", "3"))


def test_an_unfinished_measurement_says_so() -> None:
    asked = VerifyCost(("int8",), (1, 4), (10, 20))
    run = run_info(protocol="cost", options=as_json(asked), prompts={})
    records = cost_records(asked)
    assert notes(records, run) == []
    assert notes(records[:2], run) == ["the run is not finished: it has 2 of 4 records"]
    assert "prompts" not in facts(run, records)


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.txt"
    file.write_text("once\nupon", encoding="utf-8")
    assert load_text(str(file)) == "once\nupon"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_text(str(file))
    with pytest.raises(FileNotFoundError, match="--text takes a file or wikitext2"):
        load_text("nowhere.txt")
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="or name a file of text with --text"):
        load_text("wikitext2")


def test_systems_that_read_no_gguf_files_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no system 'vllm'; systems are draftwood, llama\.cpp"):
        SameFile(("vllm",))
    assert SameFile(("llama.cpp-lookup", "draftwood")).count(2) == 2 * 3


def test_texts_agree_up_to_where_one_may_end() -> None:
    plain = [5, 6, 2, 7]  # 2 ends a text, and what is asked to go on may not write it
    assert agree([5, 6, 9, 9], plain, [2])
    assert agree(plain, plain, [2])
    assert not agree([5, 9, 2, 7], plain, [2])
    assert not agree([5, 6, 2, 9], plain, [])


def test_a_unit_knows_its_place_among_the_prompts_that_fit() -> None:
    prompts = [(number, Prompt(str(number), "all", ("?",))) for number in (3, 7)]
    units = list(units_of(SpecBench(settings=Settings(temperatures=(0.0, 1.0))), prompts))
    assert [unit.place for unit in units] == [0, 0, 1, 1]


@pytest.mark.parametrize("asked", [Overhead(), SameFile()])
def test_what_runs_on_the_cpu_alone_is_told_so(asked: Measurement, tmp_path: Path) -> None:
    order = MeasurementOrder(asked, (), tmp_path, "meta")
    assert _device(order) == torch.device("cpu")


def test_hours_of_a_run_are_those_of_its_longest_answers() -> None:
    two_turns = Prompt("1", "all", ("one", "two"))
    units = [Unit("turns", (), ((0, two_turns),), 0.0, turn) for turn in range(3)]
    assert _hours(0.5, 600, units) == pytest.approx(0.5 * 600 * 6 / 3600)
    assert _hours(0.5, 600, []) == 0.0
