"""N-gram tables, bigram priors, and trees that merge sources."""

from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, MultiSource, VerifiedTree
from draftwood.drafters import multi_source as combined
from draftwood.engine import Options, generate
from draftwood.models.model import ModelOutput
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.sources import BigramPrior, NGrams, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.stats import Stats
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_methods.n_grams import NGramTables
from draftwood_torch.models.transformers import TransformersModel
from reference.bigram_prior import row_of
from reference.merger import PythonMerger

FREE = Budget(lambda nodes: 1.0 + 0.001 * nodes, per_draft_token=0.0, max_draft_tokens=12)
DEAR = Budget(lambda nodes: float(nodes), per_draft_token=0.0)


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of merging sources."""
    if not library.available():
        pytest.skip("there is no C++ compiler")
    if request.param == "python":
        monkeypatch.setattr(combined, "Merger", PythonMerger)


def table(seed: int = 0, size: int = 20, scale: float = 3.0) -> TableModel:
    return TableModel(
        torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) * scale
    )


def request_for(model: TableModel, sampling: Sampling | None = None) -> DraftRequest:
    return DraftRequest(sampling or Sampling(), Rng(0), model.start())


def news_of(model: TableModel, tree: DraftTree, path: list[int]) -> VerifiedTree:
    return VerifiedTree(tree, path, ModelOutput(model.logits[tree.tokens]))


def test_tables_answer_with_the_longest_context_first() -> None:
    tables = NGramTables(3, 1.0, 100)
    tables.learn((1, 2, 3), {9: 1.0})
    tables.learn((5, 2, 3), {8: 1.0})
    assert tables.rows((1, 2, 3)) == [(3, {9: 1.0}), (2, {8: 1.0}), (1, {8: 1.0})]
    assert tables.rows((7, 7, 3)) == [(1, {8: 1.0})]
    assert tables.rows((7,)) == []


def test_tables_average_what_they_saw_and_forget_the_oldest() -> None:
    tables = NGramTables(1, 0.25, 4)
    tables.learn((1,), {8: 1.0})
    tables.learn((1,), {9: 1.0})
    assert tables.rows((1,)) == [(1, {8: 0.75, 9: 0.25})]
    for token in range(2, 8):
        tables.learn((token,), {0: 1.0})
    assert tables.rows((1,)) == []
    assert len(tables.tables[0]) <= 4


def test_tables_learn_rejected_guesses_in_their_own_context() -> None:
    model = table()
    session = PythonMerger((NGrams(order=3),), Estimator(), request_for(model))
    session.learn(news_of(model, DraftTree.chain([1, 2]), [0, 1]), quiet=False)
    session.learn(news_of(model, DraftTree.of([3, 4, 5, 6], [-1, 0, 0, 2]), [0, 1]), quiet=False)
    assert session.sessions[0].tail == (2, 3, 4)
    assert session.sessions[0].tables.rows((3, 5, 6))[0][0] == 3
    assert session.sessions[0].tables.rows((4, 5))[0][0] == 1  # 5 came after 3, not after 4


def test_the_bigram_prior_is_what_the_model_says_after_one_token() -> None:
    model = TransformersModel(tiny_llama())
    prior = BigramPrior.of(model, before=[7], ranks=4)
    for token in (0, 7, 63):
        own = model.start().extend([7, token]).logits[-1]
        assert list(row_of(prior, token)) == own.topk(4).indices.tolist()
    some = BigramPrior.of(model, before=[7], ids=[63, 9], ranks=4)
    assert row_of(some, 63) == pytest.approx(row_of(prior, 63), abs=1e-5)
    assert row_of(some, 10) == {}
    rest = BigramPrior.of(model, before=[7], ids=[10, 0], ranks=4)
    for token in (10, 9):
        assert row_of(some.joined(rest), token) == pytest.approx(row_of(prior, token), abs=1e-5)
    with pytest.raises(ValueError, match="different ids"):
        some.joined(some)


def test_a_prior_survives_its_file(tmp_path: Path) -> None:
    prior = BigramPrior.of(table(), ids=[5, 2], ranks=3)
    prior.save(tmp_path / "prior.safetensors")
    read = BigramPrior.load(tmp_path / "prior.safetensors")
    assert np.array_equal(read.ids, [5, 2])
    assert np.array_equal(read.tokens, prior.tokens)
    assert np.allclose(read.probs, prior.probs, atol=1e-3)
    (tmp_path / "bad").write_text("nothing")
    with pytest.raises(ValueError, match="no bigram prior"):
        BigramPrior.load(tmp_path / "bad")


@pytest.mark.usefixtures("way")
def test_siblings_of_one_token_are_one_node_credited_to_all() -> None:
    model = TableModel(torch.eye(12).roll(1, 1) * 9)
    steps = list(
        generate(
            model, MultiSource(budget=FREE), Match(), [*range(12), 0], Options(max_new_tokens=30)
        )
    )
    for step in steps[1:]:
        assert step.tree is not None
        pairs = list(zip(step.tree.parents.tolist(), step.tree.token_list, strict=True))
        assert len(set(pairs)) == len(pairs)
        assert step.tree.sources is not None
        assert len(step.tree.sources) == len(step.tree)
    counts = Stats.of(steps).as_json()["sources"]
    assert set(counts) == {"suffix", "n-grams"}
    assert min(count["accepted"] for count in counts.values()) > 10
    assert all(count["accepted"] <= count["drafted"] for count in counts.values())


@pytest.mark.usefixtures("way")
def test_nothing_is_drafted_where_it_does_not_pay() -> None:
    for seed in range(3):
        steps = generate(
            table(seed),
            MultiSource(budget=DEAR),
            Match(),
            [1, 2, 3],
            Options(Sampling(1.0), 40, seed=1),
        )
        assert Stats.of(steps).drafted == 0
    circle = TableModel(torch.eye(12).roll(1, 1) * 9)
    steps = generate(
        circle, MultiSource(budget=FREE), Match(), list(range(12)), Options(max_new_tokens=40)
    )
    assert Stats.of(steps).block_efficiency > 4


@pytest.mark.usefixtures("way")
def test_a_source_that_was_given_up_comes_back_when_it_is_right_again() -> None:
    """Guesses are graded though they are not run."""
    budget = Budget(lambda nodes: 1.0 + 0.4 * (nodes - 1), per_draft_token=0.0)
    session = MultiSource((Suffix(),), budget).start(request_for(table()))
    wild = torch.randint(0, 6, (300,), generator=torch.Generator().manual_seed(1)).tolist()
    sizes = []
    for token in [*wild, *([10, 11, 12, 13, 14] * 12)]:
        tree = session.propose(token, Context([], 0))
        sizes.append(len(tree))
        session.update(VerifiedTree(DraftTree.of([token], [-1]), [0]))
    assert sum(sizes[200:300]) / 100 < 1.6
    assert max(sizes[-20:]) > 3


@pytest.mark.usefixtures("way")
def test_trees_are_cut_to_the_room_that_is_left() -> None:
    steps = list(
        generate(table(), MultiSource(budget=FREE), Match(), [1, 2], Options(max_new_tokens=7))
    )
    assert Stats.of(steps).tokens == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiSource(()), "at least one source"),
        (lambda: MultiSource((Suffix(), Suffix(4))), "different names"),
        (lambda: NGrams(order=0), "above 0"),
        (lambda: NGrams(fresh=0.0), "fresh"),
    ],
)
def test_impossible_settings(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("way")
def test_tables_are_carried_over_only_when_asked() -> None:
    model = table(scale=4.0)
    for keep, better in ((True, True), (False, False)):
        drafter = MultiSource((NGrams(keep=keep),), FREE)
        runs = [
            Stats.of(generate(model, drafter, Match(), [1], Options(max_new_tokens=6))).drafted
            for _ in range(2)
        ]
        assert (runs[1] > runs[0]) == better


def rests(model: TableModel, budget: Budget, steps: int) -> list[bool]:
    """Record step by step if the drafter rested, on a text that the table repeats."""
    session = MultiSource((Suffix(), NGrams()), budget).start(request_for(model))
    session.update(news_of(model, DraftTree.chain([1]), [0]))
    rested = []
    for step in range(steps):
        root = 2 + step % 3
        tree = session.propose(root, Context([1], 1))
        rested.append(session.rest.left > 0)
        news = VerifiedTree(
            tree, [0], None if rested[-1] else ModelOutput(model.logits[tree.tokens])
        )
        session.update(news)  # at rest nobody may read logits
    return rested


@pytest.mark.usefixtures("way")
def test_drafting_that_gains_less_than_it_costs_rests_ever_longer_and_tries_again() -> None:
    dear = Budget(lambda nodes: 1.0 + 0.9 * (nodes - 1), per_draft_token=0.0, per_step=0.5)
    rested = rests(table(), dear, 200)
    assert 0.5 < sum(rested) / len(rested) < 0.95
    lengths = [len(run) for run in "".join("r" if step else " " for step in rested).split()]
    assert lengths[:3] == sorted(lengths[:3])
    assert lengths[0] < lengths[2]
    assert not all(rested[-80:])


@pytest.mark.usefixtures("way")
def test_drafting_that_pays_never_rests() -> None:
    free = Budget(lambda nodes: 1.0, per_draft_token=0.0, per_step=0.0)
    assert not any(rests(table(), free, 100))


@pytest.mark.usefixtures("way")
def test_texts_with_rests_are_the_same() -> None:
    model = table(scale=6.0)
    dear = Budget(lambda nodes: 1.0 + 0.5 * (nodes - 1), per_draft_token=0.0, per_step=0.3)
    texts = [
        [
            token
            for step in generate(model, drafter, Match(), [1, 2, 3], Options(max_new_tokens=150))
            for token in step.tokens
        ]
        for drafter in (
            MultiSource((Suffix(), NGrams()), dear),
            MultiSource((Suffix(), NGrams()), FREE),
        )
    ]
    assert texts[0] == texts[1]
