"""Chains that stop by an estimate: where, and what they ask of the drafter."""

import math

import numpy as np
import pytest

from draftwood.rng import Rng
from draftwood.tree import DraftTree
from draftwood_methods.shapes import Until

# after 0 surely 1, after 1 nearly surely 2, after 2 anything
ROWS = np.array([[0.0, 1.0, 0.0], [0.04, 0.0, 0.96], [0.4, 0.3, 0.3]], np.float32)


def grow(shape: Until, seed: int = 0, max_draft_len: int = 9) -> tuple[DraftTree, list[int]]:
    """A tree, and the nodes from which on the drafter was asked."""
    asked: list[int] = []

    def expand(tree: DraftTree, first: int) -> np.ndarray:
        asked.append(first)
        return ROWS[tree.tokens[first:]]

    return shape.grow(0, expand, Rng(seed, noise=False), max_draft_len), asked


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        (Until(4, 0.0), [0, 1, 2, 0, 1]),
        (Until(4, 0.97), [0, 1, 2]),
        (Until(4, 0.95, "probability"), [0, 1, 2, 0]),
        (Until(4, 0.97, "probability"), [0, 1, 2]),
        (Until(1, 0.0), [0, 1]),
    ],
    ids=lambda given: given.label if isinstance(given, Until) else "",
)
def test_the_token_that_stops_a_chain_stays(shape: Until, tokens: list[int]) -> None:
    tree, asked = grow(shape)
    assert tree.token_list == tokens
    assert asked == list(range(len(tokens) - 1))  # nothing below the last token was run
    assert tree.probs is not None
    assert np.array_equal(tree.probs, ROWS[tokens[:-1]])


def test_the_entropy_is_that_of_the_row() -> None:
    entropy = -sum(p * math.log(p) for p in (0.04, 0.96))
    kept = 1.0 - math.sqrt(0.2 * entropy)
    for threshold, length in ((kept - 1e-4, 3), (kept + 1e-4, 2)):
        assert len(grow(Until(3, threshold))[0]) - 1 == length


def test_no_chain_is_longer_than_the_room() -> None:
    assert len(grow(Until(4, 0.0), max_draft_len=2)[0]) == 3
    lone, asked = grow(Until(4, 0.0), max_draft_len=0)
    assert (len(lone), lone.probs, asked) == (1, None, [])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Until(0), "length"),
        (lambda: Until(4, 1.2), "threshold must be a chance"),
        (lambda: Until(4, -0.1), "threshold must be a chance"),
        (lambda: Until(4, math.nan), "threshold must be a chance"),
        (lambda: Until(4, estimate="mood"), "entropy or probability"),
        (lambda: Until(4, spread=-1.0), "spread"),
    ],
)
def test_settings_outside_their_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
