"""The benchmark's thrifty target gives the same tokens as running whole trees."""

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from draftwood.shapes import StochasticBeam, Widths
from draftwood.testing import tiny_llama
from draftwood.verifiers import Rejection, Traversal

pytest.importorskip("greenlet")


@pytest.fixture(scope="module")
def rsd() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "rsd.py"
    sys.path.insert(0, str(path.parent))  # as when it runs as a script
    spec = importlib.util.spec_from_file_location("rsd", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["rsd"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [Widths((2, 2, 1)), StochasticBeam(3, 3)], ids=str)
def test_thrifty_runs_emit_the_same_tokens(rsd: ModuleType, shape: object) -> None:
    row = rsd.Configuration("rsd", shape, Rejection(), "length 3")
    models = {"target": tiny_llama(0, layers=2), "draft": tiny_llama(0, layers=1)}
    prompts = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 3, 9, 3]]
    results = [
        rsd.measure(row, argparse.Namespace(temperature=1.0, tokens=30, whole_trees=whole), models, prompts)
        for whole in (False, True)
    ]
    assert results[0]["per_prompt"] == results[1]["per_prompt"]
    assert results[0]["accepted_by_depth"] == results[1]["accepted_by_depth"]
    assert sum(runs for _, runs in results[0]["per_prompt"]) < 3 * 29  # something was accepted


@pytest.mark.usefixtures("unchecked")
def test_rules_that_read_leaves_first_are_not_run_thriftily(rsd: ModuleType) -> None:
    row = rsd.Configuration("rsd", Widths((2, 2)), Traversal(), "length 2")
    assert row.reads_leaves
    session = rsd.Thrifty(tiny_llama(0), rsd.Together()).start()
    rows = rsd.RowsOnDemand(session, rsd.DraftTree.of([1, 2, 3], [-1, 0, 1]))
    with pytest.raises(RuntimeError, match="whole trees"):
        rows[2:3]


def test_every_budget_is_used_up(rsd: ModuleType) -> None:
    for row in rsd.configurations():
        kind, size = row.at.split()
        if kind == "budget":
            assert row.shape.nodes == int(size), row.key
