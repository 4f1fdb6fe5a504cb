"""Runs that earlier versions measured are read, and go on where they were."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwood_bench.plan.order import MeasurementOrder
from draftwood_bench.plan.protocols import (
    PROOF,
    PROTOCOLS,
    as_json,
    from_json,
    measurement,
    timed,
)
from draftwood_bench.records.files import read_records, read_run
from draftwood_bench.run.measurements import work_of
from draftwood_bench.run.resume import Start, _difference

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FOLDERS = sorted(path.parent.name for path in RESULTS.glob("*/run.json"))
RUNS = [name for name in FOLDERS if read_run(RESULTS / name).protocol in PROTOCOLS]
MEASURED = [name for name in FOLDERS if name not in RUNS]


def is_thrifty(name: str) -> bool:
    return not timed(from_json(read_run(RESULTS / name).options))


@pytest.mark.parametrize("name", RUNS)
def test_stored_records_are_those_that_the_same_options_ask_for(name: str) -> None:
    """Every key, and all that a record tells of its shape, drafter and verifier."""
    run_info = read_run(RESULTS / name)
    cells = {cell.key: cell for cell in from_json(run_info.options).cells()}
    records = [record for record in read_records(RESULTS / name) if not record.is_peer]
    assert records
    for record in {record.cell: record for record in records}.values():
        cell = cells[record.cell]
        assert (record.method, record.at) == (cell.method, cell.at)
        assert record.shape == (None if cell.tree is None else repr(cell.tree))
        assert record.verifier == cell.rule.name
        assert record.drafter == cell.drafts_with.name
        assert record.lossless == cell.lossless
        if record.nodes is not None:  # earlier records do not tell
            assert record.nodes == (cell.tree and cell.tree.nodes)
        if record.draft_steps is not None:
            assert record.draft_steps == cell.draft_steps


@pytest.mark.parametrize("name", [name for name in RUNS if is_thrifty(name)])
def test_thrifty_runs_go_on_with_other_defaults_of_what_they_do_not_read(name: str) -> None:
    before = read_run(RESULTS / name)
    settings = before.options["settings"]
    others = {each: own for each, own in settings.items() if each not in PROOF}
    protocol: Any = from_json({**before.options, "settings": others})
    assert protocol != from_json(before.options)
    what = {"options": as_json(protocol), "model": before.model}
    digest = before.prompts.get("digest")
    start = Start(RESULTS / name, "", what, protocol.growing, digest, {}, {}, lambda: before)
    assert _difference(start, before) is None
    longer = replace(protocol, settings=replace(protocol.settings, max_new_tokens=7))
    other = {"options": as_json(longer)}
    assert "max_new_tokens" in str(_difference(replace(start, what=other), before))


@pytest.mark.parametrize("name", MEASURED)
def test_stored_figures_are_those_that_the_same_options_ask_for(name: str) -> None:
    run_info = read_run(RESULTS / name)
    asked = measurement(run_info.options)
    models = tuple(run_info.model.split(", "))
    work = work_of(MeasurementOrder(asked, models, RESULTS / name), text="")
    wanted = {record.key: record for piece in work.pieces for record in piece.records}
    found = {record.key: record for record in read_records(RESULTS / name)}
    assert found.keys() <= wanted.keys()
    # taken out: these n-grams had answered their prompts before
    missing = wanted.keys() - found.keys()
    assert all("| llama.cpp | speculation" in str(key) for key in missing)
    assert len(wanted) == asked.count(len(models))
    assert all(replace(found[key], stats={}) == wanted[key] for key in found)
