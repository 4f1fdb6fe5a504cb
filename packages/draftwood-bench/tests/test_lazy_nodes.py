"""The thrifty target gives the same tokens as running whole trees."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from draftwood.engine import Options
from draftwood.loading.models import model_for
from draftwood.models.model import ModelOutput
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.stats import Stats, Step
from draftwood.testing import tiny_llama
from draftwood.together import results_together
from draftwood.tree import DraftTree
from draftwood.verifiers import Traversal
from draftwood_bench.plan.configurations import RSD_METHODS, Configuration, rsd_configuration
from draftwood_bench.plan.protocols import Rsd
from tiny_heads import tiny_eagle, tiny_lm

pytest.importorskip("greenlet")

from draftwood_bench.run import shared_rows
from draftwood_bench.run.lazy_nodes import Drafters, RowsOnDemand, decode_together
from draftwood_bench.run.shared_rows import SharedRows

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
    found = decode_together(drafters, cells, prompt, options, whole)
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


PROMPT = [9, 3, 9, 3]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedRows]:
    """Rows of a model that notes in ``ran`` what it is asked for."""
    model: Any = model_for(tiny_llama(0, layers=2))
    ran, forward = list[list[list[int]]](), model.forward

    def noted(inputs: Any) -> Any:
        ran.append([list(each.tokens) for each in inputs])
        return forward(inputs)

    monkeypatch.setattr(model, "forward", noted)
    model.ran = ran
    found = SharedRows(model, PROMPT, hidden=(2,))
    yield found
    found.close()


def plainly(rows: SharedRows, text: Sequence[int]) -> ModelOutput:
    """Run a text by itself."""
    session = rows.model.start()
    try:
        return session.extend([*rows.prompt, *text], hidden=(2,))
    finally:
        session.close()


def test_only_what_is_read_is_run_and_only_once(rows: SharedRows) -> None:
    nodes = RowsOnDemand(rows, [7], DraftTree.of([10, 11, 12, 13, 14], [-1, 0, 1, 1, 0]))
    # leaves from the first to the last, as traversal reads them
    for node in (3, 2, 1, 0, 2):
        nodes[node : node + 1]
    asked: Any = rows.model
    assert asked.ran == [[PROMPT], [[7, 10, 11, 13]], [[12]], [[11]], [[10]]]
    other = RowsOnDemand(rows, [7, 10], DraftTree.of([11, 13, 15], [-1, 0, 1]))
    other[1:2], other[2:3]
    assert asked.ran[5:] == [[[15]]]


def test_those_who_ask_at_once_share_a_pass(rows: SharedRows) -> None:
    texts = [[5], [5], [5, 6], [7, 8]]
    found = results_together([lambda text=text: rows.after(text) for text in texts])
    asked: Any = rows.model
    assert asked.ran == [[PROMPT], [[5], [5, 6], [7, 8]]]
    for text, row in zip(texts, found, strict=True):
        assert np.array_equal(row, plainly(rows, text).rows[-1:])


def test_a_row_that_is_changed_by_who_reads_it_is_not_anothers(rows: SharedRows) -> None:
    before = rows.after([5]).copy()
    rows.after([5])[:] = 0.0
    assert np.array_equal(rows.after([5]), before)


@pytest.mark.parametrize("most", [3, 128])
def test_rows_of_many_branches_are_those_of_each_text(
    rows: SharedRows, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(shared_rows, "MOST_BRANCHES", most)
    monkeypatch.setattr(shared_rows, "MOST_BYTES", most * 1000)  # so that rows are forgotten too
    rng, texts = random.Random(0), [[1]]
    for _ in range(40):
        some = [[*rng.choice(texts), rng.randrange(4)] for _ in range(3)]
        found = results_together([lambda text=text: rows.after(text) for text in some])
        for text, row in zip(some, found, strict=True):
            assert np.array_equal(row, plainly(rows, text).rows[-1:]), text
        texts = [*texts, *some][-12:]


def test_states_are_those_of_the_nodes_that_were_run(rows: SharedRows) -> None:
    nodes = RowsOnDemand(rows, [7], DraftTree.of([10, 11, 12, 13], [-1, 0, 1, 1]))
    nodes[2:3]
    states = nodes.hidden[2]
    wanted = np.asarray(plainly(rows, [7, 10, 11, 12]).hidden[2])[-3:]
    assert np.array_equal(states[:3], wanted)
    assert not states[3].any()
    nodes[3:4]
    assert nodes.hidden[2][3].any()
    with pytest.raises(KeyError):
        nodes.hidden[1]


def test_siblings_of_one_token_are_one_place(rows: SharedRows) -> None:
    nodes = RowsOnDemand(rows, [], DraftTree.of([10, 11, 11, 12], [-1, 0, 0, 2]))
    nodes[3:4], nodes[1:2], nodes[2:3]
    asked: Any = rows.model
    assert asked.ran == [[PROMPT], [[10, 11, 12]], [[11]]]
    states = nodes.hidden[2]
    assert np.array_equal(states[1], states[2])


def test_a_row_behind_the_prompt_alone_is_the_prompts(rows: SharedRows) -> None:
    with pytest.raises(ValueError, match="behind a token"):
        rows.after([])
