"""The thrifty target gives the same tokens as running whole trees."""

import pytest
import torch

from draftwood.engine import Options
from draftwood.loading.models import model_for
from draftwood.models.model import ModelOutput
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.stats import Stats
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Traversal
from draftwood_bench.plan.configurations import RSD_METHODS, Configuration, rsd_configuration

pytest.importorskip("greenlet")

from draftwood_bench.run.lazy_nodes import RowsOnDemand, decode_together

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 3, 9, 3]]


def decode(
    cell: Configuration, whole: bool, temperature: float = 1.0
) -> tuple[list[list[int]], Stats]:
    options = [Options(Sampling(temperature), 30, seed=number) for number in range(3)]
    models = (model_for(tiny_llama(0, layers=layers)) for layers in (2, 1))
    steps = decode_together(*models, cell, PROMPTS, options, whole)  # type: ignore[call-arg,arg-type]
    return [[token for step in text for token in step.tokens] for text in steps], Stats.of(
        step for text in steps for step in text
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", RSD_METHODS)
def test_thrifty_runs_emit_the_same_tokens(method: str) -> None:
    cell = rsd_configuration(method, "length 3", (2, 2, 1), (3, 3), (1, 1, 1))
    (texts, stats), (whole_texts, whole_stats) = (decode(cell, whole) for whole in (False, True))
    assert texts == whole_texts
    assert stats.accepted_by_depth == whole_stats.accepted_by_depth
    assert stats.accepted > 0


@pytest.mark.usefixtures("unchecked")
def test_greedy_texts_are_those_of_plain_decoding() -> None:
    cell = Configuration("rsd", "length 2", "rsd-c", Widths((2, 2)), Traversal())
    assert (
        decode(cell, whole=False, temperature=0.0)[0]
        == decode(Configuration("plain"), whole=False, temperature=0.0)[0]
    )


class Counting:
    """A session that runs nothing but notes what it is asked for."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.taken_back = 0

    def extend(self, tokens: list[int], keep: str) -> ModelOutput:
        self.ran += tokens
        return ModelOutput(torch.zeros(1, 4))

    def rewind(self, count: int) -> None:
        self.taken_back += count


def test_only_what_is_read_is_run_and_only_once() -> None:
    session = Counting()
    rows = RowsOnDemand(session, DraftTree.of([10, 11, 12, 13, 14], [-1, 0, 1, 1, 0]))  # type: ignore[arg-type]
    # leaves from the first to the last, as traversal reads them
    rows[0:1], rows[1:2], rows[2:3], rows[3:4]
    assert (session.ran, session.taken_back) == ([10, 11, 12, 13], 1)
    with pytest.raises(ValueError, match="not all read"):
        rows.keep([0, 4])
    rows.keep([0, 1])
    assert session.taken_back == 2
    rows[4:5]
    assert (session.ran[4:], session.taken_back) == ([14], 3)
