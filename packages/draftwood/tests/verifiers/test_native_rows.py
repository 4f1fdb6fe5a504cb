"""Laws of trees that are drawn from logits and verified on logits, by enumeration and by draws.

The rules are those of the other tests; here the library computes their numbers, in 32 bits.
"""

from collections import Counter
from collections.abc import Callable
from itertools import permutations
from math import log

import numpy as np
import pytest

from draftwood.native.logit_rows import Children, LogitRow, LogitRows, Support
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.shapes import (
    BestFirst,
    Independent,
    Paths,
    Sequoia,
    Shape,
    StochasticBeam,
    Widths,
    stochastic_beam,
)
from draftwood.shapes.base import grow_sound
from draftwood.testing import at_nodes, distance, emitted_law, target_law
from draftwood.testing.laws import Grow, Rule
from draftwood.testing.statistics import chi_square
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import NodeProbs, Rejection, Verdict, Verifier
from reference.verifiers import EXACT
from roads import softmax

BITS = 1e-6  # of the laws' distances, in 32 bits


def tables(seed: int, vocab: int = 3) -> tuple[np.ndarray, np.ndarray]:
    scores = np.random.default_rng(seed).normal(0, 1.5, (2, vocab, vocab))
    if seed % 2:  # rows with zeros in different places
        scores[0, 0, 0] = scores[1, 0, 1] = scores[1, 1, 2] = -np.inf
    target, draft = softmax(scores)
    return target, draft


def logs(rows: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.ascontiguousarray(np.log(rows), np.float32)


def drawing(shape: Shape, draft: np.ndarray, support: Support | None = None) -> Grow:
    """Grow a shape from logits, of the tokens of ``support`` alone where there is one."""

    def expand(tree: DraftTree, first: int) -> LogitRows:
        rows = at_nodes(draft, tree, first)
        if support is not None:
            rows = rows[:, support.tokens]
        return LogitRows(logs(rows), 1.0, draft.shape[-1], support)

    return lambda rng: grow_sound(shape, 0, expand, rng)


def on_logits(verifier: Verifier) -> Rule:
    """The rule on a target's logits."""

    def rule(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        assert isinstance(target_probs, np.ndarray)
        rows = LazyProbs(logs(target_probs), Sampling(1.0), tree, Context([0], 1))
        return verifier(tree, rows, rng)

    return rule


def shape_for(verifier: Verifier, draw: Draw) -> Shape:
    widths = (1, 1) if verifier.name == "block" else (2, 1)
    return Widths(widths, draw)  # type: ignore[arg-type]


DRAWN = [
    (verifier, draw)
    for verifier, draw in EXACT
    if draw in ("distinct", "independent", "greedy-plus-one")
]


@pytest.mark.parametrize(
    ("verifier", "draw"), DRAWN, ids=lambda value: getattr(value, "name", value)
)
@pytest.mark.parametrize("seed", range(4))
def test_every_pair_keeps_the_law(verifier: Verifier, draw: Draw, seed: int) -> None:
    target, draft = tables(seed)
    grow = drawing(shape_for(verifier, draw), draft)
    law = emitted_law(on_logits(verifier), grow, target, 3)
    assert distance(law, target_law(target, 3)) < BITS


@pytest.mark.parametrize("draw", ["distinct", "independent"])
@pytest.mark.parametrize("tokens", [(2, 0), (1,), (1, 2, 0)])
def test_a_draft_vocabulary_keeps_the_law(draw: Draw, tokens: tuple[int, ...]) -> None:
    target, draft = tables(2)
    support = Support(np.array(tokens))
    for widths in ((2, 1), (3,)):
        grow = drawing(Widths(widths, draw), draft, support)  # type: ignore[arg-type]
        law = emitted_law(on_logits(Rejection()), grow, target, 3)
        assert distance(law, target_law(target, 3)) < BITS


def test_rejection_computes_no_row_of_the_draft() -> None:
    target, draft = tables(0)
    tree = drawing(Widths((2, 2)), draft)(Rng(1))
    for seed in range(20):
        on_logits(Rejection())(tree, at_nodes(target, tree), Rng(seed))
    assert tree.rows is not None
    assert "probs" not in vars(tree)
    chances = tree.without_probs().chances
    assert chances is not None
    wanted = tree.probs[tree.parents[1:], tree.tokens[1:]]
    assert np.allclose(chances, [1.0, *wanted])


def keeps(row: LogitRow, token: int) -> LogitRow:
    return row


def forgets(row: LogitRow, drafted: LogitRow) -> tuple[LogitRow, float]:
    return row, 1.0


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (LogitRow, "without", keeps),
        (LogitRow, "minus", forgets),
        (LogitRow, "chance", lambda row, token: 1.0 / 3.0),
    ],
    ids=["a tested sibling stays", "nothing is taken away", "chances of another row"],
)
def test_wrong_rows_change_the_law(
    owner: type, name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tables(2)
    grow = drawing(Widths((2, 1)), draft)
    monkeypatch.setattr(owner, name, wrong)
    law = emitted_law(on_logits(Rejection()), grow, target, 2)
    assert distance(law, target_law(target, 2)) > 1e-3


def on_arrays(shape: Shape, draft: np.ndarray) -> Grow:
    return lambda rng: shape.grow(0, lambda tree, first: at_nodes(draft, tree, first), rng)


@pytest.mark.parametrize(
    "shape",
    [
        Widths((1, 1, 1)),
        Widths((3, 2), budget=7),
        Independent(3, 3),
        StochasticBeam(3, 3),
        StochasticBeam(4, 3, budget=9),
        Sequoia(budget=9, max_depth=3),
        BestFirst(3, 3, 7),
        Paths(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))),
    ],
    ids=lambda shape: shape.label,
)
@pytest.mark.parametrize("noise", [True, False])
def test_trees_are_those_of_arrays(shape: Shape, noise: bool) -> None:
    """From the same uniform numbers, up to rounding."""
    _, draft = tables(4, vocab=40)
    for seed in range(60):
        one, other = (
            grow(Rng(seed, noise=noise))
            for grow in (drawing(shape, draft), on_arrays(shape, draft))
        )
        assert one.token_list == other.token_list
        assert one.parent_list == other.parent_list
        assert one.draw == other.draw
        assert one.is_drawn == other.is_drawn
        if one.is_drawn:
            assert np.allclose(one.probs, other.probs, atol=1e-6, rtol=1e-5)


def ordered_pairs(draft: np.ndarray) -> dict[tuple[int, ...], float]:
    """Law of the first two draws without replacement."""
    row = draft[0].tolist()
    return {
        (one, two): row[one] * row[two] / (1.0 - row[one])
        for one, two in permutations(range(len(row)), 2)
    }


def test_beams_are_draws_without_replacement() -> None:
    _, draft = tables(6, vocab=5)
    grow, rng = drawing(StochasticBeam(2, 1), draft), Rng(3)
    counts = Counter(tuple(grow(rng).token_list[1:]) for _ in range(20_000))
    assert chi_square(counts, ordered_pairs(draft)) > 1e-4


def beam_law(draft: np.ndarray, seed: int) -> float:
    """Evidence that whole beams are texts without replacement (Kool et al. 2019)."""
    law = {
        (a, b): float(draft[0, a] * draft[a, b])
        for a in range(len(draft))
        for b in range(len(draft))
    }
    first: Counter[tuple[int, ...]] = Counter()
    grow, rng = drawing(StochasticBeam(2, 2), draft), Rng(seed)
    for _ in range(20_000):
        tree = grow(rng)
        leaf = tree.parent_list[3] if len(tree) > 3 else 0  # of the best beam of the last level
        first[tree.token_list[leaf], tree.token_list[3]] += 1
    return chi_square(first, law)


def test_the_best_beam_is_a_text_of_the_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    _, draft = tables(8, vocab=4)
    assert beam_law(draft, 1) > 1e-4

    def likeliest(log_prob: float, _: float, chances: list[float], __: object) -> list[float]:
        return [log_prob + log(chance) for chance in chances]

    monkeypatch.setattr(stochastic_beam, "falling_values", likeliest)
    assert beam_law(draft, 1) < 1e-6


def test_texts_of_beams_follow_the_target() -> None:
    target, draft = tables(10)
    grow, rng, rule = drawing(StochasticBeam(2, 2), draft), Rng(5), on_logits(Rejection())
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(6000):
        tree = grow(rng)
        verdict = rule(tree, at_nodes(target, tree), rng)
        tokens = [*(tree.token_list[node] for node in verdict.path), verdict.next_token]
        while len(tokens) < 2:
            tokens.append(rng.draw(target[tokens[-1]]))
        counts[tokens[0], tokens[1]] += 1
    assert chi_square(counts, target_law(target, 2)) > 1e-4


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_broken_rows_keep_the_law_and_end_drafting(wrong: float) -> None:
    target, draft = tables(0)

    def expand(tree: DraftTree, first: int) -> LogitRows:
        rows = logs(at_nodes(draft, tree, first))
        rows[tree.tokens[first:] == 1, 0] = wrong
        return LogitRows(rows, 1.0)

    def grow(rng: Rng) -> DraftTree:
        return grow_sound(Widths((2, 1)), 0, expand, rng)

    law = emitted_law(on_logits(Rejection()), grow, target, 3)
    assert distance(law, target_law(target, 3)) < BITS
    trees = [grow(Rng(seed)) for seed in range(20)]
    assert all(bool(tree.is_broken) == (1 in tree.token_list[1:3]) for tree in trees)
    assert {bool(tree.is_broken) for tree in trees} == {True, False}


@pytest.mark.parametrize("shape", [Widths((2, 2)), StochasticBeam(3, 2), Independent(2, 2)])
def test_at_temperature_0_the_text_is_the_likeliest(shape: Shape) -> None:
    target, draft = tables(4, vocab=6)
    for root in range(6):
        rng = Rng(root, noise=False)
        tree = drawing(shape, np.roll(draft, root, 0))(rng)
        rows = LazyProbs(logs(at_nodes(target, tree)), Sampling(0.0), tree, Context([0], 1))
        verdict = Rejection()(tree, rows, rng)
        token = 0
        for emitted in [*(tree.token_list[node] for node in verdict.path), verdict.next_token]:
            token = int(target[token].argmax())
            assert emitted == token


def test_a_shape_that_knows_no_logits_gets_arrays() -> None:
    _, draft = tables(0)
    given: list[object] = []

    class Own(Widths):
        def grow(self, root, expand, rng, max_draft_len=9):
            def noted(tree: DraftTree, first: int) -> np.ndarray:
                given.append(expand(tree, first))
                return given[-1]

            return super().grow(root, noted, rng, max_draft_len)

    tree = drawing(Own((2, 1)), draft)(Rng(0))
    assert all(isinstance(rows, np.ndarray) for rows in given)
    assert tree.rows is None
    assert tree.token_list == drawing(Widths((2, 1)), draft)(Rng(0)).token_list


def test_rows_survive_cutting_a_tree() -> None:
    _, draft = tables(0)
    tree = drawing(Widths((2, 2, 1)), draft)(Rng(2))
    kept = tree.truncated(2)
    assert kept.rows is not None
    assert np.allclose(kept.probs, tree.probs[: len(kept.probs)])
    assert tree.drawn_chances() is not None
    assert isinstance(
        Rng(0).draw_children(LogitRows(np.zeros((1, 3), np.float32), 1.0), 1), Children
    )
