"""The thrifty target gives the same tokens as running whole trees."""

import pytest

from draftwood.bench.cells import Cell
from draftwood.engine import Options
from draftwood.sampling import Sampling
from draftwood.shapes import StochasticBeam, Widths
from draftwood.stats import Stats
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Rejection, Traversal

pytest.importorskip("greenlet")

from draftwood.bench.thrifty import RowsOnDemand, Thrifty, Together, decode_together

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 3, 9, 3]]


def decode(cell: Cell, whole: bool, temperature: float = 1.0) -> tuple[list[list[int]], Stats]:
    options = [Options(Sampling(temperature), 30, seed=number) for number in range(3)]
    steps = decode_together(tiny_llama(0, layers=2), tiny_llama(0, layers=1), cell, PROMPTS, options, whole)
    return [[token for step in text for token in step.tokens] for text in steps], Stats.of(
        step for text in steps for step in text
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [Widths((2, 2, 1)), StochasticBeam(3, 3)], ids=str)
def test_thrifty_runs_emit_the_same_tokens(shape: object) -> None:
    cell = Cell("rsd", "length 3", "rsd-c", shape, Rejection())  # type: ignore[arg-type]
    (texts, stats), (whole_texts, whole_stats) = (decode(cell, whole) for whole in (False, True))
    assert texts == whole_texts
    assert stats.accepted_by_depth == whole_stats.accepted_by_depth
    assert stats.accepted > 0


@pytest.mark.usefixtures("unchecked")
def test_greedy_texts_are_those_of_plain_decoding() -> None:
    cell = Cell("rsd", "length 2", "rsd-c", Widths((2, 2)), Traversal())
    assert decode(cell, whole=False, temperature=0.0)[0] == decode(Cell("plain"), whole=False, temperature=0.0)[0]


@pytest.mark.usefixtures("unchecked")
def test_rules_that_read_leaves_first_are_not_run_thriftily() -> None:
    session = Thrifty(tiny_llama(0), Together()).start()
    rows = RowsOnDemand(session, DraftTree.of([1, 2, 3], [-1, 0, 1]))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="whole trees"):
        rows[2:3]
