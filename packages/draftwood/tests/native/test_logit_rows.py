"""Rows that stay logits: sums, draws and what rejections leave, against arrays in 64 bits."""

import numpy as np
import pytest

from draftwood.native.logit_rows import LogitRow, LogitRows, Remainder, Support
from draftwood.native.rows_numpy import softmax, topk
from draftwood.rng import Rng
from draftwood.verifiers.base import residual, without

SIZES = (3, 16, 255, 256, 257, 4096, 5000)


def logits_of(size: int, rows: int = 3, seed: int = 0) -> np.ndarray:
    """Rows whose largest value stands first, anywhere and last, some without a chance."""
    made = np.random.default_rng(seed).standard_normal((rows, size), np.float32) * 3
    made[0, 0], made[-1, -1] = 30.0, 40.0
    made[1, : size // 3] = -np.inf
    return made


def law(logits: np.ndarray, temperature: float) -> np.ndarray:
    return softmax(logits.astype(np.float64), temperature)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_chances_are_those_of_a_softmax(size: int, temperature: float) -> None:
    logits = logits_of(size)
    rows, wanted = LogitRows(logits, temperature), law(logits, temperature)
    assert not rows.is_broken
    assert np.allclose(rows.probs(), wanted, atol=1e-6, rtol=1e-4)
    for number, row in enumerate(rows.each()):
        for token in (0, size // 2, size - 1):
            assert row.chance(token) == pytest.approx(float(wanted[number, token]), rel=1e-6)
        assert row.chance(size) == 0.0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("distinct", [True, False])
def test_draws_invert_the_same_distribution(size: int, distinct: bool) -> None:
    logits = logits_of(size)
    rows, wanted = LogitRows(logits, 0.8), law(logits, 0.8)
    for seed in range(40):
        drawn = Rng(seed).draw_children(rows, 3, distinct)
        rng = Rng(seed)
        tokens = rng.draw_distinct(wanted, 3) if distinct else rng.draw_independent(wanted, 3)
        possible = np.take_along_axis(wanted, tokens, -1) > 1e-30  # what fills up may be anything
        assert (np.array(drawn.tokens) == tokens)[possible].all()
        chances = np.take_along_axis(wanted, np.array(drawn.tokens), -1)
        assert np.allclose(drawn.chances, chances, atol=1e-9, rtol=1e-5)


def test_without_noise_the_likeliest_come_first() -> None:
    logits = logits_of(700)
    drawn = Rng(0, noise=False).draw_children(LogitRows(logits, 1.0), 4)
    assert drawn.tokens == topk(logits, 4).tolist()
    alone = Rng(0, noise=False).draw_children(LogitRows(logits, 1.0), 2, distinct=False)
    assert alone.tokens == topk(logits, 2).tolist()


def test_what_fills_up_has_no_chance() -> None:
    """A rule would otherwise accept a token that nobody drew."""
    logits = np.array([[0.0, 1.0, -200.0, -np.inf]], np.float32)
    rows = LogitRows(logits, 1.0)
    for seed in range(20):
        drawn = Rng(seed).draw_children(rows, 4)
        assert sorted(drawn.tokens[0][:2]) == [0, 1]
        assert drawn.chances[0][2:] == [0.0, 0.0]
    assert [rows.each()[0].chance(token) for token in (2, 3)] == [0.0, 0.0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, None])
@pytest.mark.parametrize("size", [3, 5000])
def test_a_row_without_a_distribution_counts_as_uniform(wrong: float | None, size: int) -> None:
    logits = logits_of(size)
    if wrong is None:
        logits[1] = -np.inf
    else:
        logits[1, size - 2] = wrong
    rows = LogitRows(logits, 1.0)
    assert rows.is_broken
    assert np.allclose(rows.probs()[1], 1.0 / size)
    assert rows.each()[1].chance(0) == pytest.approx(1.0 / size, rel=1e-6)
    assert np.allclose(rows.probs()[0], law(logits[:1], 1.0)[0], atol=1e-7)


def support_of(size: int, vocab: int) -> Support:
    """Draft tokens in no order."""
    return Support(np.random.default_rng(3).permutation(vocab)[:size])


@pytest.mark.parametrize("vocab", [40, 300, 5000])
@pytest.mark.parametrize("known", ["all", "first", "some"])
def test_rejections_leave_what_arrays_leave(vocab: int, known: str) -> None:
    size = vocab if known == "all" else vocab // 2
    support = support_of(size, vocab) if known == "some" else None
    target, drafts = logits_of(vocab, seed=5), logits_of(size, seed=6)
    p: LogitRow | Remainder = LogitRows(target, 1.3).each()[2]
    q = LogitRows(drafts, 0.9, vocab, support).each()[2]
    wanted, drawn_from = law(target, 1.3)[2], q.rows.widened(law(drafts, 0.9))[2]
    for _ in range(4):
        token = int(drawn_from.argmax())
        assert q.chance(token) == pytest.approx(float(drawn_from[token]), rel=1e-5)
        p, wanted = p.minus(q)[0], residual(wanted, drawn_from)
        q, drawn_from = q.without(token), without(drawn_from, token)
        assert np.allclose(p.array(), wanted, atol=1e-6, rtol=1e-4)
        assert np.allclose(q.array(), drawn_from, atol=1e-6, rtol=1e-4)
        assert p.chance(3) == pytest.approx(float(wanted[3]), rel=1e-4, abs=1e-9)


def test_a_nearly_certain_row_knows_what_is_left_of_it() -> None:
    """1 - q of the drawn token would be rounding alone."""
    logits = np.array([[20.0, 0.0, 1.0, -1.0]], np.float32)
    left = LogitRows(logits, 1.0).each()[0].without(0)
    wanted = law(logits[:, 1:], 1.0)[0].tolist()
    assert [left.chance(token) for token in (1, 2, 3)] == pytest.approx(wanted, rel=1e-6)
    assert left.chance(0) == 0.0


def test_of_equal_rows_nothing_is_left_but_the_row() -> None:
    rows = LogitRows(logits_of(300), 1.0)
    p, q = rows.each()[0], rows.each()[0]
    rest, total = p.minus(q)
    assert total == 0.0
    assert np.allclose(rest.array(), q.array(), atol=1e-7)


@pytest.mark.parametrize("weight", [0.3, 0.9])
def test_a_path_of_smaller_weight_leaves_less(weight: float) -> None:
    target, drafts = logits_of(300, seed=5), logits_of(300, seed=6)
    p, q = LogitRows(target, 1.0).each()[1], LogitRows(drafts, 1.0).each()[1]
    wanted = np.maximum(weight * law(target, 1.0)[1] - law(drafts, 1.0)[1], 0.0)
    rest, total = p.minus(q, weight)
    assert total == pytest.approx(float(wanted.sum()), rel=1e-5)
    assert np.allclose(rest.array(), wanted / wanted.sum(), atol=1e-6, rtol=1e-4)
