"""Prices on lists of texts: closed forms, two ways of counting, and the package's own checks."""

import math
from itertools import permutations

import numpy as np
import pytest

from draftwood.models.model import PromptInput, RowsInput
from draftwood_diffusion.lists.list_model import list_model
from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.lists.price import accuracy, distribution, divergence, price, unwritten
from draftwood_diffusion.lists.tasks import TASKS, exercises, latin_rows
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.proof import (
    CHECKS,
    LOOKED_AHEAD,
    Comparison,
    compared,
    mixtures,
    replacements,
    shuffles,
)
from draftwood_diffusion.unmasking import parse

RULES = (
    *("one-by-one", "by-margin", "by-entropy", "left-to-right", "random", "top-k", "top-k,k=3"),
    *("threshold,tau=0.4", "factor", "local-leap", "ccd", "ccd-agreement,warm=1", "entropy"),
    *("longest-prefix,beta=0.4", "threshold,tau=0.4+whole", "top-k,k=4+adablock"),
)


def orders(n: int) -> ListedTexts:
    """Every order of n items, equally likely, behind a prompt of token n."""
    return ListedTexts.of([(n, *each) for each in permutations(range(n))])


def cost(listed: ListedTexts, method: str, n: int) -> tuple[float, float]:
    """Bits and accuracy of a method in one block."""
    found = price(unwritten(listed, (int(listed.texts[0, 0]),), parse(method), n))
    return found.bits, found.accuracy


@pytest.mark.parametrize("n", [2, 4])
def test_prices_of_shuffling_are_the_closed_forms(n: int) -> None:
    at_once = n * math.log2(n) - math.log2(math.factorial(n))
    assert cost(orders(n), f"top-k,k={n}", n) == pytest.approx((at_once, math.factorial(n) / n**n))
    pairs = math.prod((r - 1) / r for r in range(n, 0, -2))  # (n - 1)!! / n!!
    assert cost(orders(n), "top-k,k=2", n) == pytest.approx((-math.log2(pairs), pairs))
    assert cost(orders(n), "threshold,tau=0.51", n) == pytest.approx((0.0, 1.0))
    assert cost(orders(n), "threshold,tau=0.49", n)[1] < 0.51


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_prices_of_replacing_one_are_the_closed_forms(n: int) -> None:
    listed, share = replacements(n), (n - 1) / n
    bits = (n - 1) * math.log2(1 / share)
    assert cost(listed, f"top-k,k={n}", n) == pytest.approx((bits, share ** (n - 1)))
    assert cost(listed, f"threshold,tau={share - 0.01}", n)[0] > 0.1
    assert cost(listed, f"threshold,tau={share + 0.01}", n) == pytest.approx((0.0, 1.0))
    prompt = (int(listed.texts[0, 0]),)

    def greedy(k: int) -> float:
        left = unwritten(listed, prompt, parse(f"top-k,k={k}"), n)
        return accuracy(listed, distribution(left, greedy=True).chances)

    assert greedy(1) == pytest.approx(1.0)
    if n % 2 == 0:
        assert greedy(2) == pytest.approx(0.5)
    if n > 2:
        assert greedy(n) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "task", ["copy", "reverse", "sort", "insert", "remove", "replace", "sudoku"]
)
def test_tasks_of_one_answer_cost_nothing(task: str) -> None:
    (exercise,) = exercises(task, 5, 1, 0)
    listed = exercise.listed()
    found = price(unwritten(listed, exercise.prompt, parse("top-k,k=20"), 20))
    assert (found.bits, found.accuracy, found.passes) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("length", [2, 3, 4])
def test_prices_by_text_are_those_of_every_draw(method: str, length: int) -> None:
    parsed = parse(method)
    if parsed.blocks.name == "adablock":
        parsed = parse(method.replace("+adablock", ""))
    for listed in (shuffles(), mixtures(4, 2)):
        left = unwritten(listed, (5,), parsed, length)
        every, found = distribution(left), price(left)
        assert sum(every.chances.values()) == pytest.approx(1.0)
        assert found.bits == pytest.approx(divergence(listed, every.chances), abs=1e-9)
        assert found.accuracy == pytest.approx(accuracy(listed, every.chances))


def test_an_order_may_have_any_seed() -> None:
    listed, method = ListedTexts.of([(0, 1, 2), (0, 2, 1)]), parse("random")
    orders = [unwritten(listed, (0,), method, 3, seed).order.tolist() for seed in (-1, 1)]
    assert orders[0] != orders[1]


def test_one_place_a_pass_costs_nothing_and_more_do() -> None:
    for name in ("one-by-one", "by-margin", "by-entropy", "left-to-right", "random"):
        for length in (1, 2, 4):
            assert price(unwritten(mixtures(4), (5,), parse(name), length)).bits < 1e-9, name
    assert price(unwritten(mixtures(), (5,), parse("top-k,k=2"), 5)).bits > 0.1


def test_editing_mends_texts_that_cannot_be() -> None:
    listed = ListedTexts.of([(2, *[token] * 7) for token in (0, 1)], vocab=4)
    plain, edited = (
        price(unwritten(listed, (2,), parse(each), 7))
        for each in ("top-k,k=3", "top-k,k=3+edit,above=0.6")
    )
    assert plain.accuracy == pytest.approx(0.25)  # three draws agree
    assert edited.accuracy > plain.accuracy + 0.05
    three = ListedTexts.of([(2, *[token] * 3) for token in (0, 1)], vocab=4)
    last = price(unwritten(three, (2,), parse("top-k,k=3+edit,above=0.6"), 3))
    assert last.accuracy == pytest.approx(1.0)  # what the only pass fixed is edited too
    assert last.passes == pytest.approx(0.25 * 2 + 0.75 * 3)


def test_a_list_knows_what_follows() -> None:
    listed = ListedTexts.of([(0, 1, 1), (0, 2, 1), (1, 2, 2)], [1.0, 1.0, 2.0])
    assert (listed.mask, listed.vocab, listed.places) == (3, 4, 3)
    nothing = listed.marginals(np.array([3, 3, 3]))
    np.testing.assert_allclose(nothing[0], [0.5, 0.5, 0.0, 0.0])
    known = listed.marginals(np.array([0, 3, 3]))
    np.testing.assert_allclose(known[1:], [[0, 0.5, 0.5, 0], [0, 1, 0, 0]])
    torn = listed.marginals(np.array([0, 3, 2]))  # no text is like that
    np.testing.assert_allclose(torn[1], [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(torn[2], [0, 1, 0, 0])  # by the others
    with pytest.raises(ValueError, match="as 3 is the mask; got 0 to 3"):
        ListedTexts(np.array([[0, 3]]), np.ones(1), 4)
    with pytest.raises(ValueError, match="weights must be above 0"):
        ListedTexts.of([(0,)], [0.0])
    with pytest.raises(ValueError, match="with a weight each"):
        ListedTexts(np.array([[0, 1]]), np.ones(2), 4)
    with pytest.raises(ValueError, match=r"no text of the list begins with \[9\]"):
        unwritten(listed, (9,), parse("random"), 2)


def test_a_list_model_insists_on_rows_in_order() -> None:
    model = list_model(mixtures(), 2).model
    session = model.start()
    with pytest.raises(ValueError, match="give a RowsInput"):
        model.forward([PromptInput(session, [1])])
    model.forward([RowsInput(session, [5, 1], [0, 1], np.ones((2, 2), bool))])
    with pytest.raises(ValueError, match="row 1 has position 1 and would be kept at 0"):
        session.commit([1])
    session.commit([0, 1])
    assert session.length == 2


def test_exercises_are_right() -> None:
    assert len(latin_rows()) == 576
    for task in TASKS:
        one, again = exercises(task, 4, 2, 7), exercises(task, 4, 2, 7)
        assert one == again
        for exercise in one:
            answers = exercise.answers
            assert len(set(answers)) == len(answers) >= 1
            assert len({len(each) for each in answers}) == 1
    (shuffled,) = exercises("shuffle", 4, 1, 0)
    (replaced,) = exercises("replace-one", 4, 1, 0)
    (inserted,) = exercises("insert-anywhere", 4, 1, 0)
    assert (len(shuffled.answers), len(replaced.answers), len(inserted.answers)) == (24, 4, 5)
    (latin,) = exercises("latin-square", 4, 1, 0)
    assert len(latin.answers) == 24
    assert all(len(set(answer[place::5])) == 3 for answer in latin.answers for place in range(4))
    hard, easy = (exercises(f"words-{each}", 4, 1, 0)[0] for each in ("hard", "easy"))
    assert len(hard.answers) > len(easy.answers) > 1
    with pytest.raises(ValueError, match="there is no task 'dance'; there are: copy"):
        exercises("dance", 4, 1, 0)
    with pytest.raises(ValueError, match="2 to 9 items, got 10"):
        exercises("copy", 10, 1, 0)
    with pytest.raises(ValueError, match=r"every order of a list, 40,320 of 8 items, .* at most 7"):
        exercises("shuffle", 8, 1, 0)
    assert exercises("reverse", 9, 1, 0)


@pytest.mark.proof
def test_every_lookahead_that_is_checked_saves_passes() -> None:
    """Or its identity would say nothing."""
    for base in LOOKED_AHEAD:
        found = compared(base, FreeDave(4))
        assert found.changed == 0, base
        assert found.saved > 0, base
    assert Comparison(1, 0, 2, 1) + Comparison(1, 1, 3, 0) == Comparison(2, 1, 5, 1)


@pytest.mark.parametrize("name", list(CHECKS))
@pytest.mark.proof
def test_checks_pass(name: str) -> None:
    found = CHECKS[name]()
    assert found.passed, found.detail
    assert found.name == name
