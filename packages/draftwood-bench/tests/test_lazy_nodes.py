"""The thrifty target gives the same tokens as running whole trees."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwood.engine import Options
from draftwood.loading.models import model_for
from draftwood.models.model import ModelOutput
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.stats import Stats, Step
from draftwood.testing import tiny_llama
from draftwood.testing.heads import tiny_eagle, tiny_lm
from draftwood.tree import DraftTree
from draftwood.verifiers import Traversal
from draftwood_bench.plan.configurations import RSD_METHODS, Configuration, rsd_configuration
from draftwood_bench.plan.protocols import Rsd

pytest.importorskip("greenlet")

from draftwood_bench.run.lazy_nodes import Drafters, RowsOnDemand, decode_together

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 3, 9, 3]]
TREES = {
    name: rsd_configuration(name, "length 3", (2, 2, 1), (3, 3), (1, 1, 1)) for name in RSD_METHODS
}
WIDE = [
    rsd_configuration(name, "budget 14", (7, 1), (7, 2), (1,) * 14)
    for name in ("spectr", "spectr + traversal", "specinfer", "specinfer + traversal")
]
"""Siblings are drawn independently, so that many hold one token."""
DRAWN = [name for name in TREES if "greedy" not in name]
"""Methods that the heads' drafters draw for."""


def drafted_with(kind: str, target: Any) -> Any:
    """A draft model, or a head of the target."""
    if kind == "model":
        return model_for(tiny_llama(0, layers=1))
    return tiny_eagle(target) if kind == "eagle" else tiny_lm(target)


def decode(
    cells: Sequence[Configuration],
    whole: bool,
    temperature: float = 1.0,
    draft: str = "model",
    prompt: Sequence[int] = PROMPTS[0],
) -> list[tuple[list[int], dict[str, Any]]]:
    """The text of each configuration, and what was counted."""
    target: Any = model_for(tiny_llama(0, layers=4))
    options = Options(Sampling(temperature), 30, seed=3)
    drafters = Drafters(target, drafted_with(draft, target))
    found = decode_together(target, drafters, cells, prompt, options, whole)
    return [([token for step in steps for token in step.tokens], counts(steps)) for steps in found]


def counts(steps: Sequence[Step]) -> dict[str, Any]:
    stats = Stats.of(steps).as_json()
    names = ("tokens", "target_runs", "drafted", "accepted", "accepted_by_depth")
    return {name: stats[name] for name in names}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_thrifty_runs_equal_whole_ones(prompt: list[int], temperature: float) -> None:
    cells = [Configuration("plain"), *TREES.values(), *WIDE]
    thrifty, whole = (decode(cells, whole, temperature, prompt=prompt) for whole in (False, True))
    assert thrifty == whole
    accepted = [counted["accepted"] for _, counted in thrifty[1:]]
    assert all(accepted) if temperature == 1.0 else any(accepted)
    assert len({tuple(text) for text, _ in thrifty}) > 1  # rules differ in what they draw


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("draft", ["eagle", "lm"])
def test_thrifty_runs_from_heads_equal_whole_ones(draft: str, temperature: float) -> None:
    cells = Rsd(trained=draft, methods=tuple(DRAWN), lengths=(3,), budgets=(6, 14)).cells()
    thrifty, whole = (decode(cells, whole, temperature, draft) for whole in (False, True))
    assert thrifty == whole
    assert all(counted["drafted"] > 0 for _, counted in thrifty[1:])
    assert any(counted["accepted"] > 0 for _, counted in thrifty[1:])


@pytest.mark.usefixtures("unchecked")
def test_a_text_does_not_depend_on_those_beside_it() -> None:
    both = decode([TREES["rsd-c"], TREES["rsd-s"]], whole=False)
    alone = [decode([TREES[name]], whole=False)[0] for name in ("rsd-c", "rsd-s")]
    assert both == alone


@pytest.mark.usefixtures("unchecked")
def test_greedy_texts_are_those_of_plain_decoding() -> None:
    cell = Configuration("rsd", "length 2", "rsd-c", Widths((2, 2)), Traversal())
    own, plain = decode([cell, Configuration("plain")], whole=False, temperature=0.0)
    assert own[0] == plain[0]


class Counting:
    """A session that runs nothing but notes what it is asked for."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.taken_back = 0

    def extend(self, tokens: list[int], keep: str, hidden: tuple[int, ...]) -> ModelOutput:
        self.ran += tokens
        rows = torch.tensor(tokens).float()[:, None]
        return ModelOutput(torch.zeros(1, 4), {layer: layer * rows for layer in hidden})

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


def test_states_are_those_of_the_nodes_that_were_run() -> None:
    session, tree = Counting(), DraftTree.of([10, 11, 12, 13], [-1, 0, 1, 1])
    rows = RowsOnDemand(session, tree, (2,))  # type: ignore[arg-type]
    rows[2:3]
    assert rows.hidden[2][:, 0].tolist() == [20.0, 22.0, 24.0, 0.0]
    rows[3:4]
    rows.keep([0, 1, 3])
    assert rows.hidden[2][[0, 1, 3], 0].tolist() == [20.0, 22.0, 26.0]
    with pytest.raises(KeyError):
        rows.hidden[1]


def test_siblings_of_one_token_are_one_place() -> None:
    session, tree = Counting(), DraftTree.of([10, 11, 11, 12], [-1, 0, 0, 2])
    rows = RowsOnDemand(session, tree, (2,))  # type: ignore[arg-type]
    rows[3:4]
    rows.keep([0, 1])
    assert (session.ran, session.taken_back) == ([10, 11, 12], 1)
    assert rows.hidden[2][:, 0].tolist() == [20.0, 22.0, 22.0, 24.0]
