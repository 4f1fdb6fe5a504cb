"""Distinct texts: drawn without replacement, proven on a table by enumeration."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from draftwood.engine import Options, run_all
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.testing import TableModel, chi_square
from draftwood_choices.distinct import DistinctText, DistinctTexts
from roads import tiny_llama

LENGTH, END, PROMPT = 2, 2, [0]
ROWS = [[0.5, 0.3, 0.2], [0.2, 0.45, 0.35], [0.3, 0.3, 0.4]]
TABLE = TableModel(np.log(np.array(ROWS, np.float32)))
Pair = tuple[tuple[int, ...], ...]


def options(seed: int | None, temperature: float = 1.0) -> Options:
    return Options(Sampling(temperature), LENGTH, frozenset({END}), seed)


def distinct_texts(
    target: Model, prompt: Sequence[int], options: Options, count: int
) -> list[DistinctText]:
    """Draw different answers; see ``DistinctTexts``."""
    task = DistinctTexts(target, prompt, options, count)
    for _ in run_all([task]):
        pass
    return task.texts


def chances() -> dict[tuple[int, ...], float]:
    """Probability of each text of the table: two tokens, or fewer where the end comes."""
    probs, found = np.exp(TABLE.logits), dict[tuple[int, ...], float]()
    for text in product(range(3), repeat=LENGTH):
        cut = text[: text.index(END) + 1] if END in text else text
        steps = zip((PROMPT[-1], *cut), cut, strict=False)
        found[cut] = float(np.prod([probs[before, token] for before, token in steps]))
    assert sum(found.values()) == pytest.approx(1.0)
    return found


def without_replacement() -> dict[Pair, float]:
    """Probability of each ordered pair of different texts."""
    single = chances()
    return {
        (first, second): p * q / (1.0 - p)
        for first, p in single.items()
        for second, q in single.items()
        if first != second
    }


def two_distinct(seed: int) -> Pair:
    found = distinct_texts(TABLE, PROMPT, options(seed), 2)
    return tuple(tuple(each.tokens) for each in found)


def two_of_an_order_by_chance(seed: int) -> Pair:
    """A wrong rule: the right set, the likelier text first."""
    return tuple(sorted(two_distinct(seed), key=chances().__getitem__, reverse=True))


def two_distinct_by_another_draw(seed: int) -> Pair:
    """A wrong rule: two of three distinct texts, each as often."""
    found = distinct_texts(TABLE, PROMPT, options(seed), 3)
    order = np.random.default_rng(seed).permutation(3)[:2]
    return tuple(tuple(found[place].tokens) for place in order)


def p_value(draw: Callable[[int], Pair], texts: int = 4000) -> float:
    return chi_square(Counter(map(draw, range(texts))), without_replacement())


@pytest.mark.usefixtures("unchecked")
def test_the_order_and_the_set_are_those_of_drawing_without_replacement() -> None:
    assert p_value(two_distinct) > 1e-4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [two_of_an_order_by_chance, two_distinct_by_another_draw])
def test_wrong_draws_are_caught(wrong: Callable[[int], Pair]) -> None:
    assert p_value(wrong) < 1e-4


def test_all_texts_come_out_once_where_more_are_asked_for() -> None:
    single = chances()
    found = distinct_texts(TABLE, PROMPT, options(3), 20)
    assert {tuple(each.tokens) for each in found} == set(single)
    assert len(found) == len(single)
    for each in found:
        assert each.log_prob == pytest.approx(np.log(single[tuple(each.tokens)]), abs=1e-5)


def test_greedily_it_is_beam_search() -> None:
    single = chances()
    found = distinct_texts(TABLE, PROMPT, options(None, temperature=0.0), 9)
    assert [tuple(each.tokens) for each in found] == sorted(single, key=single.__getitem__)[::-1]


def test_a_model_with_a_cache_gives_each_text_its_own_chance_and_its_cache_back() -> None:
    if not library.available():
        pytest.skip("no C++ compiler")
    model = NativeModel(tiny_llama(3, layers=2, vocab=8))
    wanted = Options(Sampling(1.0), 5, frozenset({1}), seed=4)
    found = distinct_texts(model, [3, 1, 4], wanted, 6)
    assert len({tuple(each.tokens) for each in found}) == 6
    assert not model.pool.used
    for each in found:
        session = model.start()
        rows = session.extend([3, 1, 4, *each.tokens]).rows[2:-1]
        session.close()
        log_probs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        known = float(sum(row[token] for row, token in zip(log_probs, each.tokens, strict=True)))
        assert each.log_prob == pytest.approx(known, abs=1e-4)


def test_texts_end_where_the_context_does() -> None:
    if not library.available():
        pytest.skip("no C++ compiler")
    model = NativeModel(tiny_llama(3, layers=2, vocab=8, context=12))
    found = distinct_texts(model, [3, 1, 4, 1, 5, 2, 6, 5], Options(Sampling(0.0), 20), 2)
    assert [len(each.tokens) for each in found] == [5, 5]  # the last is not run
    with pytest.raises(ValueError, match="the model's context is 12; shorten the prompt"):
        distinct_texts(model, [3] * 12, Options(Sampling(0.0), 20), 2)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt and a count"):
        distinct_texts(TABLE, [], options(0), 2)
    with pytest.raises(ValueError, match="a prompt and a count"):
        distinct_texts(TABLE, PROMPT, options(0), 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_tokens_that_are_cut_off_are_in_no_text(temperature: float, cut: dict[str, float]) -> None:
    least = Options(Sampling(temperature, **cut), LENGTH, frozenset({END}), 3)  # type: ignore[arg-type]
    assert [each.tokens for each in distinct_texts(TABLE, PROMPT, least, 3)] == [[0, 0]]
    assert len(distinct_texts(TABLE, PROMPT, options(3, temperature), 3)) == 3
