"""Latent trees: the walk over leaves gives what the sum tree by tree gives."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

from draftwood.testing import chi_square
from draftwood_choices.forms import latent_trees
from draftwood_choices.forms.latent_trees import TreeLaw, likeliest_tree, log_joint, log_marginal

VOCAB = 2
Text = tuple[int, ...]


def texts(depth: int) -> list[Text]:
    lengths = range(1, (1 << depth) + 1)
    return [text for length in lengths for text in product(range(VOCAB), repeat=length)]


def tree_by_tree(law: TreeLaw, text: Text) -> list[tuple[float, latent_trees.Leaves]]:
    return [(log_joint(law, leaves, text), leaves) for leaves in latent_trees.trees(law.depth)]


def worst(law: TreeLaw) -> float:
    """Largest error of the log-probability of a text."""
    return max(
        abs(log_marginal(law, text) - np.logaddexp.reduce([p for p, _ in tree_by_tree(law, text)]))
        for text in texts(law.depth)
    )


@pytest.mark.parametrize(("depth", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_the_sum_over_trees_equals_enumeration_and_makes_one(depth: int, seed: int) -> None:
    law = TreeLaw.drawn(depth, VOCAB, seed)
    assert worst(law) < 1e-10
    assert sum(np.exp(log_marginal(law, text)) for text in texts(depth)) == pytest.approx(1.0)


def whole_splits(law: TreeLaw) -> np.ndarray:
    """A wrong rule: each leaf counts all splits above it."""
    shares = np.zeros_like(law.stop)
    for node in range(2, len(shares)):
        shares[node] = shares[node // 2] + law.split[node // 2]
    return law.stop + shares


def cells_of_equal_leaves(law: TreeLaw, node: int) -> tuple[int, int]:
    """A wrong rule: a leaf covers one cell whatever its depth."""
    start = (node - (1 << (node.bit_length() - 1))) << (law.depth - node.bit_length() + 1)
    return start, start + 1


@pytest.mark.parametrize(
    ("part", "wrong"), [("leaf_scores", whole_splits), ("cells", cells_of_equal_leaves)]
)
def test_wrong_sums_are_caught(
    monkeypatch: pytest.MonkeyPatch, part: str, wrong: Callable[..., object]
) -> None:
    law = TreeLaw.drawn(3, VOCAB, 2)
    monkeypatch.setattr(TreeLaw, part, wrong)
    assert worst(law) > 0.1


def test_the_likeliest_tree_is_that_of_enumeration() -> None:
    law = TreeLaw.drawn(3, VOCAB, 3)
    for text in texts(3):
        best, leaves = likeliest_tree(law, text)
        expected = max(tree_by_tree(law, text))
        assert best == pytest.approx(expected[0])
        assert leaves == expected[1]


def test_no_tree_writes_a_text_that_is_too_long_or_empty() -> None:
    law = TreeLaw.drawn(1, VOCAB, 0)
    for text in ((0, 1, 0), ()):
        assert log_marginal(law, text) == -np.inf
        assert likeliest_tree(law, text) == (-np.inf, ())


def test_texts_that_are_drawn_from_the_top_down_have_these_chances() -> None:
    # All nodes alike, so that a text has many trees of one chance, none of which stands for all.
    half = np.full(16, np.log(0.5))
    deepest = np.arange(16) >= 8
    stop, split = np.where(deepest, 0.0, half), np.where(deepest, -np.inf, half)
    law = TreeLaw(3, stop, split, np.log(np.tile([0.7, 0.3], (16, 1))))
    rng = np.random.default_rng(7)
    counts = Counter(law.draw(rng)[1] for _ in range(4000))
    chances = {text: float(np.exp(log_marginal(law, text))) for text in texts(3)}
    assert chi_square(counts, chances) > 1e-4
    best = {text: float(np.exp(likeliest_tree(law, text)[0])) for text in texts(3)}
    alone = {text: chance / sum(best.values()) for text, chance in best.items()}
    assert chi_square(counts, alone) < 1e-4  # the likeliest tree in the place of the sum


def test_the_command_prints_both_sums() -> None:
    made = CliRunner().invoke(latent_trees.main, ["a b a c", "--json"])
    found = json.loads(made.stdout)
    assert found["log_prob"] == pytest.approx(found["log_prob_tree_by_tree"], abs=1e-10)
    assert found["trees"] > 1
    assert 0 < found["its_share"] < 1
    assert found["likeliest_tree"].replace("(", "").replace(")", "") == "a b a c"
    assert "likeliest tree: (" in CliRunner().invoke(latent_trees.main, ["a b a c"]).stdout
    for text, more in (("", []), ("a b c", ["--depth", "1"])):
        refused = CliRunner().invoke(latent_trees.main, [text, *more])
        assert refused.exit_code == 2
        assert "change --depth or TEXT" in refused.stderr
    refused = CliRunner().invoke(latent_trees.main, ["a", "--seed", "-1"])
    assert (refused.exit_code, "'--seed': -1" in refused.stderr) == (2, True)
