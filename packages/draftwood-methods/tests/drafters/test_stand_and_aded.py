"""STAND draws what it says it draws; ADED follows its table."""

from collections import Counter

import pytest
import torch

from draftwood.drafters import DraftRequest, VerifiedTree
from draftwood.models.model import ModelOutput
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.testing import TableModel, chi_square
from draftwood.tree import DraftTree
from draftwood_methods.drafters.aded import Aded
from draftwood_methods.drafters.stand import Stand, halves


def stand_after(logits: torch.Tensor, drafter: Stand, tokens: list[int], rng: Rng):
    model = TableModel(logits)
    session = drafter.start(DraftRequest(Sampling(1.0), rng, model.start()))
    session.update(
        VerifiedTree(
            DraftTree.chain(tokens), range(len(tokens)), ModelOutput(logits[torch.tensor(tokens)])
        )
    )
    return session


def test_stand_draws_children_from_the_row_it_stores() -> None:
    logits = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)) * 2
    session = stand_after(logits, Stand(nodes=3, width=2), [1, 2, 3], Rng(0))
    drawn: Counter[int] = Counter()
    for _ in range(3000):
        tree = session.propose(2, Context([], 0))
        assert tree.draw == "distinct"
        assert tree.probs is not None
        assert tree.probs[0].sum().item() == pytest.approx(1.0)
        for children in tree.children:
            assert len({tree.token_list[child] for child in children}) == len(children)
        drawn[tree.token_list[1]] += 1
    row = tree.probs[0]
    assert sorted(row.nonzero()[0].tolist()) == sorted(logits[2].topk(8).indices.tolist())
    assert (
        chi_square(drawn, {token: float(row[token]) for token in range(12) if row[token] > 0})
        > 1e-3
    )


def test_stand_takes_the_likeliest_tokens_at_temperature_0() -> None:
    logits = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)) * 2
    session = stand_after(logits, Stand(nodes=2, width=2), [1, 2, 3], Rng(0, noise=False))
    tree = session.propose(2, Context([], 0))
    assert tree.token_list == [2, *logits[2].topk(2).indices.tolist()]


def test_stand_guesses_nothing_about_tokens_never_seen() -> None:
    session = stand_after(torch.zeros(12, 12), Stand(), [1, 2], Rng(0))
    assert len(session.propose(9, Context([], 0))) == 1


@pytest.mark.parametrize("nodes", [1, 2, 5, 16])
def test_stand_keeps_its_budget(nodes: int) -> None:
    logits = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    session = stand_after(logits, Stand(nodes=nodes), list(range(12)), Rng(0))
    assert len(session.propose(3, Context([], 0))) == nodes + 1


def test_halves() -> None:
    assert halves(16, 4) == [8, 4, 2, 2]
    assert halves(5, 4) == [3, 1, 1]
    assert halves(3, 1) == [3]
    assert halves(0, 4) == []
    assert halves(3, 0) == []


def aded_after(tokens: list[int], drafter: Aded):
    session = drafter.start(
        DraftRequest(Sampling(), Rng(0), TableModel(torch.zeros(30, 30)).start())
    )
    session.update(VerifiedTree(DraftTree.chain(tokens), range(len(tokens))))
    return session


def test_aded_takes_the_likeliest_paths() -> None:
    session = aded_after([1, 2, 3, 1, 2, 3, 1, 2, 4, 1], Aded(nodes=3))
    tree = session.propose(2, Context([], 0))
    paths = {tuple(tree.token_list[n] for n in tree.path_to(node)) for node in range(1, len(tree))}
    assert paths == {(3,), (3, 1), (3, 1, 2)}
    assert (
        len(aded_after([1, 2, 3, 1, 2, 3], Aded(nodes=9, depth=2)).propose(1, Context([], 0))) == 3
    )


def test_aded_weights_rise_and_are_clipped() -> None:
    session = aded_after([1, 2, 3] * 20 + [1, 2, 4, 1], Aded(rise=1.0, largest=3.0))
    assert session.own[1, 2] == {3: 3.0, 4: 1.0}


def test_aded_leaves_a_given_table_alone() -> None:
    table = {(1, 2): {5: 2.0}}
    session = aded_after([9, 1], Aded(table=table))
    assert session.propose(2, Context([], 0)).token_list == [2, 5]
    session.update(VerifiedTree(DraftTree.chain([2, 6]), range(2)))
    assert session.own[1, 2] == {5: 2.0, 6: 0.56}
    assert table == {(1, 2): {5: 2.0}}


def test_aded_guesses_nothing_at_the_beginning() -> None:
    session = Aded().start(DraftRequest(Sampling(), Rng(0), TableModel(torch.zeros(9, 9)).start()))
    assert len(session.propose(2, Context([], 0))) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stand(nodes=0), "above 0"),
        (lambda: Stand(width=9), "at most 8"),
        (lambda: Aded(depth=0), "above 0"),
        (lambda: Aded(rise=4.0), "rise"),
    ],
)
def test_impossible_settings(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
