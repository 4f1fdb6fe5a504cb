"""Jacobi, lookahead and input-guided drafts: what they propose after what they saw."""

import pytest
import torch

from draftwood.drafters import DraftRequest, DraftSession, VerifiedTree
from draftwood.drafters.drafter import Drafter
from draftwood.models.model import ModelOutput
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from draftwood_methods.drafters.input_guided import InputGuided
from draftwood_methods.drafters.jacobi import Jacobi
from draftwood_methods.drafters.lookahead import Lookahead

VOCAB = 12
NOWHERE = Context([0], 1)


def session_of(drafter: Drafter, prompt: list[int]) -> DraftSession:
    model = TableModel(torch.zeros(VOCAB, VOCAB))
    session = drafter.start(DraftRequest(Sampling(0.0), Rng(0, noise=False), model.start()))
    session.update(VerifiedTree(DraftTree.chain(prompt), range(len(prompt))))
    return session


@pytest.mark.parametrize("drafter", [InputGuided(3, 2), Lookahead(2, 3, 2)], ids=lambda d: d.name)
def test_a_prompt_may_come_in_parts(drafter: Drafter) -> None:
    """As it does behind a cached beginning, or where it is long."""
    whole, parts = session_of(drafter, [1, 2, 3, 4, 5, 6]), session_of(drafter, [1, 2, 3, 4])
    parts.update(VerifiedTree(DraftTree.chain([5, 6]), range(2)))
    tree = whole.propose(4, NOWHERE)
    assert len(tree) > 1
    assert parts.propose(4, NOWHERE).token_list == tree.token_list


def answer(session: DraftSession, tree: DraftTree, path: list[int], says: list[int]) -> None:
    """Tell a session which nodes were kept, and what the target held likeliest at each node."""
    logits = torch.nn.functional.one_hot(torch.tensor(says), VOCAB).float()
    session.update(VerifiedTree(tree, path, ModelOutput(logits)))


def test_jacobi_goes_on_with_what_was_said_below_the_rejected_token() -> None:
    session = session_of(Jacobi(3), [1, 2])
    first = session.propose(4, NOWHERE)
    assert first.token_list == [4, 4, 4, 4]
    answer(session, first, [0], [5, 6, 7, 8])
    second = session.propose(5, NOWHERE)
    assert second.token_list == [5, 6, 7, 8]
    answer(session, second, [0, 1], [6, 9, 10, 11])
    assert session.propose(9, NOWHERE).token_list == [9, 10, 11, 11]
    assert session.propose(9, Context([0], 1, max_draft_len=1)).token_list == [9, 10]


def test_lookahead_makes_ngrams_of_its_window_and_checks_those_that_begin_alike() -> None:
    session = session_of(Lookahead(2, 3, 2), [1, 2])
    tree = session.propose(3, NOWHERE)
    # places 1 and 2 of the window, each with a second iteration below it
    assert tree.token_list == [3, 1, 1, 2, 2]
    assert tree.parent_list == [-1, 0, 1, 1, 3]
    answer(session, tree, [0], [0, 0, 5, 0, 6])  # makes 1 1 5 and 2 2 6
    tree = session.propose(2, NOWHERE)
    assert tree.token_list == [2, 1, 5, 2, 6, 2, 6]
    assert tree.parent_list == [-1, 0, 1, 1, 3, 0, 5]
    lone = session.propose(2, Context([0], 1, max_draft_len=1))  # no room for the window
    assert lone.token_list == [2, 2]


def test_lookahead_keeps_the_newest_ngrams() -> None:
    session = session_of(Lookahead(1, 2, 2), [1])
    said = [1]
    for token in (5, 1, 6, 1, 7, 1):
        tree = session.propose(0, NOWHERE)
        answer(session, tree, [0], [0, token, *[0] * (len(tree) - 2)])
        said.append(token)
    assert session.propose(1, NOWHERE).token_list == [1, 1, 7, 6]


def test_input_guided_copies_on_and_finds_its_place_again() -> None:
    source = [1, 2, 3, 4, 5, 6, 7, 3, 9]
    session = session_of(InputGuided(3), source)
    assert session.propose(2, NOWHERE).token_list == [2, 3, 4, 5]
    session.update(VerifiedTree(DraftTree.chain([2, 3]), range(2)))
    assert session.propose(4, NOWHERE).token_list == [4, 5, 6, 7]
    session.update(VerifiedTree(DraftTree.chain([4, 11]), range(2)))  # an insertion
    assert session.propose(10, NOWHERE).token_list == [10]  # not in the source
    session.update(VerifiedTree(DraftTree.chain([10]), range(1)))
    assert session.propose(5, NOWHERE).token_list == [5, 6, 7, 3]
    session.update(VerifiedTree(DraftTree.chain([5, 6, 7, 3]), range(4)))
    # the 3 behind the place, not the first one
    assert session.propose(9, NOWHERE).token_list == [9]
    assert session.propose(4, Context([0], 1, max_draft_len=2)).token_list == [4, 5, 6]


def test_input_guided_stays_at_its_place_where_a_word_is_said_twice() -> None:
    session = session_of(InputGuided(3), [1, 2, 3, 4, 2, 9])
    assert session.propose(1, NOWHERE).token_list == [1, 2, 3, 4]
    session.update(VerifiedTree(DraftTree.chain([1, 2]), range(2)))
    assert session.propose(2, NOWHERE).token_list == [2, 3, 4, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Jacobi(0), "length"),
        (lambda: Lookahead(ngram=1), "ngram must be at least 2"),
        (lambda: Lookahead(window=0), "window"),
        (lambda: InputGuided(longest=0), "longest"),
    ],
)
def test_impossible_settings_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
