"""Superposed Decoding: one text is greedy decoding, several are what brute force says."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from draftwood.drafters import Nothing
from draftwood.engine import Options, generate, run_all
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.sources.token_index import TokenIndex
from draftwood.testing import TableModel, tiny_llama
from draftwood.verifiers import Match
from draftwood_choices.superposed import (
    WEIGHTS,
    CountedTexts,
    SuperposedText,
    SuperposedTexts,
    Superposition,
)
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")
VOCAB, PROMPT = 12, [3, 1, 4, 1, 5]
ALONE = Superposition(alpha=0.0)
TEXT = random.Random(5).choices(range(VOCAB), k=3000)


def model(seed: int = 3) -> NativeModel:
    return NativeModel(tiny_llama(seed, layers=2, vocab=VOCAB))


def options(length: int = 8, ends: Sequence[int] = ()) -> Options:
    return Options(Sampling(0.0), length, frozenset(ends))


def superposed_texts(
    target: Model,
    prompt: Sequence[int],
    options: Options,
    count: int,
    n_grams: CountedTexts | None = None,
    knobs: Superposition | None = None,
) -> list[SuperposedText]:
    """Write k texts at once; see ``SuperposedTexts``."""
    task = SuperposedTexts(target, prompt, options, count, n_grams, knobs or Superposition())
    for _ in run_all([task]):
        pass
    return task.best


def greedily(target: Any, length: int, ends: Sequence[int] = ()) -> list[int]:
    steps = generate(target, Nothing(), Match(), PROMPT, options(length, ends))
    return [token for step in steps for token in step.tokens]


class CountedByHand:
    """N-grams of a text, counted one by one."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def counts(self, before: Sequence[int], tokens: Sequence[int]) -> tuple[int, np.ndarray]:
        width = len(before)
        ends = [
            place
            for place in range(width, len(self.text) + 1)
            if self.text[place - width : place] == list(before)
        ]
        following = Counter(self.text[place] for place in ends if place < len(self.text))
        return len(ends), np.array([following[token] for token in tokens])


def by_brute_force(
    target: NativeModel,
    count: int,
    length: int,
    knobs: Superposition,
    weigh: Any = lambda scores: np.exp(scores) / np.exp(scores).sum(),
) -> list[tuple[tuple[int, ...], float]]:
    """Texts and scores, from passes over the whole sequence of mixtures each time."""
    embed, grams = target.embeddings_and_head.embed, CountedByHand(TEXT)
    rows = [np.asarray(embed(np.array(PROMPT)))]
    texts: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(length):
        session = target.start()
        logits = session.extend((), "last", embeddings=np.concatenate(rows)).rows[-1]
        session.close()
        likely = sorted(range(VOCAB), key=lambda token: -logits[token])[: knobs.candidates * count]
        heated = {token: math.exp(float(logits[token]) / knobs.temperature) for token in likely}
        p = {token: heat / sum(heated.values()) for token, heat in heated.items()}
        grown = []
        for tokens, score in texts:
            before = [*PROMPT, *tokens]
            tails = [before[-n:] for n in (1, 2, 3)]
            places = [max(1, grams.counts(tail, [])[0]) for tail in tails]
            q = {
                token: sum(
                    weight * grams.counts(tail, [token])[1][0] / total
                    for weight, tail, total in zip(WEIGHTS, tails, places, strict=True)
                )
                for token in likely
            }
            for token in likely:
                own = (1 - knobs.alpha) * math.log(p[token])
                if knobs.alpha and not any(q.values()):
                    own -= knobs.penalty
                elif knobs.alpha:
                    own = own + knobs.alpha * math.log(q[token]) if q[token] else -math.inf
                grown.append(((*tokens, token), score + own))
        texts = sorted(grown, key=lambda each: -each[1])[:count]
        weights = weigh(np.array([score for _, score in texts]))
        newest = np.asarray(embed(np.array([tokens[-1] for tokens, _ in texts])))
        rows.append((weights[:, None] * newest).sum(0, dtype=np.float32)[None].astype(np.float32))
    return texts


@pytest.mark.parametrize("path", [NativeModel, LeanModel, TransformersModel])
@pytest.mark.parametrize("seed", range(4))
def test_one_text_without_n_grams_is_greedy_decoding(seed: int, path: Any) -> None:
    target = path(tiny_llama(seed, layers=2, vocab=VOCAB))
    (found,) = superposed_texts(target, PROMPT, options(40), 1, knobs=ALONE)
    assert list(found.tokens) == greedily(target, 40)
    assert not target.pool.used


def test_one_text_ends_where_greedy_decoding_does() -> None:
    target = model()
    end = greedily(target, 40)[7]
    wanted = greedily(target, 40, [end])
    (found,) = superposed_texts(target, PROMPT, options(40, [end]), 1, knobs=ALONE)
    assert list(found.tokens) == wanted
    assert found.ended


@pytest.mark.parametrize("knobs", [ALONE, Superposition(), Superposition(0.3, 1.0, 4)])
@pytest.mark.parametrize("count", [1, 3])
def test_texts_and_scores_are_those_of_brute_force(knobs: Superposition, count: int) -> None:
    target, index = model(), TokenIndex.of([TEXT], VOCAB)
    found = superposed_texts(target, PROMPT, options(6), count, index, knobs)
    wanted = by_brute_force(target, count, 6, knobs)
    assert [each.tokens for each in found] == [tokens for tokens, _ in wanted]
    for each, (_, score) in zip(found, wanted, strict=True):
        assert each.score == pytest.approx(score, abs=1e-3)
    assert len({each.tokens for each in found}) == count


@pytest.mark.parametrize(
    "weigh", [lambda scores: np.ones(len(scores)) / len(scores), lambda s: np.eye(len(s))[0]]
)
def test_a_wrong_weighting_is_caught(weigh: Any) -> None:
    """Negative control: a mean of the embeddings, or the best text's alone, scores otherwise."""
    knobs = Superposition(0.3, 1.0, 4)
    found = superposed_texts(model(), PROMPT, options(6), 3, TokenIndex.of([TEXT], VOCAB), knobs)
    wrong = by_brute_force(model(), 3, 6, knobs, weigh)
    apart = [abs(each.score - score) for each, (_, score) in zip(found, wrong, strict=True)]
    assert max(apart) > 0.05


def test_the_mixture_is_weighted_by_the_texts_probabilities() -> None:
    task = SuperposedTexts(model(), PROMPT, options(), 3, knobs=ALONE)
    task.texts = [
        SuperposedText((2, token), math.log(share))
        for token, share in ((7, 0.4), (0, 0.1), (7, 0.3))
    ]
    rows = np.asarray(task.target.embeddings_and_head.embed(np.array([7, 0])))
    assert task.mixture() == pytest.approx(0.875 * rows[0] + 0.125 * rows[1], abs=1e-6)


def test_a_text_without_n_grams_of_its_own_is_penalised() -> None:
    """Only pairs of the text go on; one whose last token stands nowhere loses the penalty."""
    index = TokenIndex.of([[0, 1, 0, 1, 0]], VOCAB)
    task = SuperposedTexts(model(), [0], options(), 2, index, Superposition(candidates=VOCAB))
    log_probs = np.log(np.full(3, 1 / 3))
    own, strange = (
        task._scores(SuperposedText((token,)), [0, 1, 2], log_probs) for token in (0, 5)
    )
    assert np.isneginf(own[[0, 2]]).all()
    assert own[1] == pytest.approx(0.45 * log_probs[1] + 0.55 * math.log(0.01 * 2 / 3 + 0.04 * 0))
    assert strange == pytest.approx(0.45 * log_probs - 200)


def test_one_row_is_run_a_pass_and_one_session_is_used() -> None:
    target = model()
    task, seen = SuperposedTexts(target, PROMPT, options(9), 3, knobs=ALONE), list[int]()
    while task.finish_reason is None:
        (asked,) = task.plan(None)  # type: ignore[arg-type]
        seen.append(asked.rows)
        task.commit(target.forward([asked]), 0.0)
    task.close()
    assert not target.pool.used
    assert seen == [1] * 9
    assert task.runs == 8
    assert task.finish_reason == "length"


def test_texts_that_go_on_make_way_once_enough_have_ended() -> None:
    task = SuperposedTexts(model(), PROMPT, options(), 2, knobs=ALONE)
    task.texts = [SuperposedText((1,), -1.0), SuperposedText((2,), -2.0)]
    task.ended = [SuperposedText((3,), -4.0, True)]
    assert [each.tokens for each in task.best] == [(1,), (2,)]
    task.ended.append(SuperposedText((4,), -3.0, True))
    assert task.finish_reason == "stop"
    assert [each.tokens for each in task.best] == [(4,), (3,)]


def test_bad_input_is_refused() -> None:
    odd: list[dict[str, Any]] = [{"alpha": 1.0}, {"temperature": 0.0}, {"candidates": 0}]
    for knobs in odd:
        with pytest.raises(ValueError, match="0 <= alpha < 1"):
            Superposition(**knobs)
    with pytest.raises(ValueError, match="give a datastore, or set alpha 0"):
        superposed_texts(model(), PROMPT, options(), 3)
    with pytest.raises(ValueError, match="a prompt and a count"):
        superposed_texts(model(), [], options(), 3, knobs=ALONE)
    with pytest.raises(ValueError, match="shorten the prompt"):
        superposed_texts(model(), PROMPT * 1000, options(), 3, knobs=ALONE)
    with pytest.raises(ValueError, match="draws nothing"):
        superposed_texts(model(), PROMPT, Options(Sampling(1.0), 4), 3, knobs=ALONE)
    table = TableModel(np.eye(4, dtype=np.float32))
    with pytest.raises(ValueError, match="reads vectors in the place of tokens"):
        superposed_texts(table, [1], options(), 3, knobs=ALONE)
