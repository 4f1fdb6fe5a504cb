"""Sampling against Transformers' own logits processors."""

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftwood.arrays import as_array
from draftwood.native.rows import softmax, topk
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.tree import DraftTree
from draftwood_torch.hook.processors import RowSampler, Scores

VOCAB = 5000
TOKENS = random.Random(0).choices(range(VOCAB), k=40)
CONTEXT = Context(TOKENS, prompt=25)


def rows(vocab: int = VOCAB) -> np.ndarray:
    """A flat, a usual, a peaked and a very peaked row."""
    torch.manual_seed(1)
    return (torch.randn(4, vocab) * torch.tensor([0.3, 2.0, 6.0, 30.0])[:, None]).numpy()


def processors(sampling: Sampling) -> LogitsProcessorList:
    """Processors that ``generate`` of Transformers makes of the same options, in its order."""
    made: list[object] = []
    if sampling.logit_bias:
        made.append(
            SequenceBiasLogitsProcessor(
                {(token,): bias for token, bias in sampling.logit_bias.items()}
            )
        )
    if sampling.repetition_penalty != 1.0:
        made.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature not in (0.0, 1.0):
        made.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        made.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        made.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        made.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList(made)


def expected(sampling: Sampling, logits: np.ndarray, tokens: Sequence[int] = TOKENS) -> np.ndarray:
    contexts = torch.tensor([list(tokens)]).expand(len(logits), -1)
    return processors(sampling)(contexts, torch.tensor(logits)).softmax(-1).numpy()


def assert_same_law(sampling: Sampling, logits: np.ndarray) -> None:
    got, wanted = sampling.probs(logits, [CONTEXT] * len(logits)), expected(sampling, logits)
    assert abs(got - wanted).max() < 1e-6
    # the very same tokens are kept, up to what rounding makes 0
    assert np.array_equal(got > 1e-36, wanted > 1e-36)
    assert float(got[wanted == 0.0].sum()) == 0.0
    assert np.allclose(got.sum(-1), 1.0)


ALONE = [
    *({"temperature": t} for t in (0.05, 0.3, 1.0, 1.7, 10.0)),
    *({"top_k": k} for k in (1, 2, 50, 4999, 5000, 90000)),
    *({"top_p": p} for p in (1e-9, 0.05, 0.5, 0.9, 0.99, 0.9999)),
    *({"min_p": p} for p in (0.01, 0.1, 0.5, 1.0)),
    *({"repetition_penalty": r} for r in (0.5, 1.1, 3.0)),
    {"logit_bias": {3: 5.0, 4000: -7.5, TOKENS[0]: 2.0}},
    {"logit_bias": {17: float("-inf")}},
]


@pytest.mark.parametrize("options", ALONE, ids=str)
def test_each_option_alone(options: dict[str, float]) -> None:
    assert_same_law(Sampling(**{"temperature": 1.0, **options}), rows())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    product((0.4, 1.3), (0, 300), (0.6, 0.97), (0.0, 0.05)),
)
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_all_options_together(
    temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    bias = {1: 4.0, TOKENS[3]: -2.0}
    assert_same_law(Sampling(temperature, top_k, top_p, min_p, penalty, logit_bias=bias), rows())


@pytest.mark.parametrize("vocab", [5, 255, 257, 1000, 4096, 4097])
def test_nucleus_whatever_the_size_of_the_vocabulary(vocab: int) -> None:
    for top_p in (0.3, 0.95):
        assert_same_law(Sampling(1.0, top_p=top_p), rows(vocab))


def test_another_order_would_be_noticed() -> None:
    """Negative control: top-p before temperature keeps other tokens."""
    sampling, logits = Sampling(1.7, top_p=0.6), rows()
    turned = LogitsProcessorList(processors(sampling)[::-1])
    scores = turned(torch.tensor([TOKENS]).expand(4, -1), torch.tensor(logits))
    assert abs(sampling.probs(logits) - scores.softmax(-1).numpy()).max() > 1e-4


def test_ties_at_the_edge_of_top_k_stay_in() -> None:
    logits = np.array([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0]], np.float32)
    assert (Sampling(1.0, top_k=2).probs(logits) > 0).tolist() == [
        [True, False, True, True, True, False]
    ]
    assert np.allclose(
        Sampling(1.0, top_k=2).probs(logits), expected(Sampling(1.0, top_k=2), logits, [0])
    )


@pytest.mark.parametrize(
    ("presence", "frequency"), [(0.5, 0.0), (0.0, 0.7), (1.5, -0.3), (-2.0, 2.0)]
)
def test_presence_and_frequency_penalties_follow_openai(presence: float, frequency: float) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c[j] counted in the answer only."""
    logits = rows(20)
    answer = [3, 3, 3, 7, 19, 7]
    context = Context([1, 3, 2, 2, *answer], prompt=4)
    wanted = logits.copy()
    for token in range(20):
        wanted[:, token] -= answer.count(token) * frequency + (token in answer) * presence
    sampling = Sampling(1.0, presence_penalty=presence, frequency_penalty=frequency)
    assert np.allclose(sampling.probs(logits, [context] * 4), softmax(wanted, 1.0), atol=1e-6)
    at_start = [Context([1, 3, 2, 2], prompt=4)] * 4
    assert np.allclose(sampling.probs(logits, at_start), softmax(logits, 1.0), atol=1e-7)


def test_repetition_comes_before_presence() -> None:
    logits, context = np.array([[4.0, 1.0]], np.float32), [Context([0], prompt=0)]
    probs = Sampling(1.0, repetition_penalty=2.0, presence_penalty=1.0).probs(logits, context)
    assert np.allclose(probs, [[0.5, 0.5]])


def test_logits_are_not_written_to() -> None:
    logits = rows()
    before = logits.copy()
    Sampling(0.7, 20, 0.8, 0.1, 1.2, 0.3, 0.4, {3: 1.0}).probs(logits, [CONTEXT] * 4)
    Sampling(0.0, repetition_penalty=1.2, logit_bias={3: 1.0}).probs(logits, [CONTEXT] * 4)
    assert np.array_equal(logits, before)


def test_rows_do_not_touch_each_other() -> None:
    sampling, logits = Sampling(0.8, 40, 0.9, 0.02, 1.3), rows()
    contexts = [Context(TOKENS[: 10 * (n + 1)], 5) for n in range(4)]
    together = sampling.probs(logits, contexts)
    for row in range(4):
        assert np.allclose(
            together[row], sampling.probs(logits[row : row + 1], contexts[row : row + 1])[0]
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_results_are_float32_or_better(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(rows()).to(dtype)
    probs = Sampling(0.9, top_p=0.9).probs(as_array(logits))
    assert probs.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert np.allclose(probs, Sampling(0.9, top_p=0.9).probs(as_array(logits.double())), atol=1e-6)


# Temperature 0


def test_temperature_zero_is_one_hot_at_the_likeliest() -> None:
    logits = rows()
    probs = Sampling(0.0, top_k=5, top_p=0.3, min_p=0.5).probs(logits)
    assert np.array_equal(probs.argmax(-1), logits.argmax(-1))
    assert np.unique(probs).tolist() == [0.0, 1.0]
    assert probs.sum(-1).tolist() == [1.0] * 4


def test_temperature_zero_obeys_penalties_and_bias() -> None:
    logits, contexts = np.array([[5.0, 4.0, 3.0]], np.float32), [Context([0], prompt=0)]
    assert Sampling(repetition_penalty=2.0).probs(logits, contexts).tolist() == [[0.0, 1.0, 0.0]]
    assert Sampling(logit_bias={2: 2.5}).probs(logits).tolist() == [[0.0, 0.0, 1.0]]


def test_drafting_is_never_one_hot() -> None:
    greedy = Sampling(
        0.0, top_k=1, top_p=0.1, min_p=0.9, repetition_penalty=1.3, logit_bias={1: 2.0}
    )
    assert greedy.for_drafting() == Sampling(1.0, repetition_penalty=1.3, logit_bias={1: 2.0})
    warm = Sampling(0.3, top_k=4)
    assert warm.for_drafting() is warm
    assert greedy.greedy
    assert not warm.greedy


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"temperature": 0.5, "top_k": 3, "logit_bias": {1: 1.0}}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
    ],
)
def test_what_reads_the_context(options: dict[str, float], reads: bool) -> None:
    assert Sampling(**options).reads_context is reads


# Trees


def tree_and_logits() -> tuple[DraftTree, np.ndarray]:
    tree = DraftTree.of([4, 1, 4, 2, 1, 1, 0], [-1, 0, 0, 1, 1, 3, 2])
    torch.manual_seed(2)
    return tree, torch.randn(len(tree), 6).numpy()


SAMPLERS = [
    Sampling(0.9, top_p=0.8),
    Sampling(0.9, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.7),
    Sampling(0.0, frequency_penalty=2.0),
    RowSampler(
        Scores(
            torch.tensor([[5, 3]]),
            LogitsProcessorList(
                [RepetitionPenaltyLogitsProcessor(1.5), TemperatureLogitsWarper(0.7)]
            ),
        ),
        number=0,
        prompt=2,
        greedy=False,
    ),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=range(4))
def test_every_node_has_its_own_path_as_context(sampler: Sampling | RowSampler) -> None:
    tree, logits = tree_and_logits()
    before = Context([5, 3, 4], prompt=2)
    probs = LazyProbs(logits, sampler, tree, before)
    for node in reversed(range(len(tree))):
        tokens, above = [], node
        while above >= 0:
            tokens.insert(0, tree.token_list[above])
            above = int(tree.parents[above])
        alone = sampler.probs(logits[node][None], [Context([5, 3, 4, *tokens], prompt=2)])[0]
        assert np.array_equal(probs[node], alone)


@pytest.mark.parametrize("sampler", [SAMPLERS[1], SAMPLERS[3]], ids=["own", "processors"])
def test_a_shared_context_would_be_noticed(sampler: Sampling | RowSampler) -> None:
    """Negative control: the root's context for all nodes gives other laws."""
    tree, logits = tree_and_logits()
    before = Context([5, 3, 4], prompt=2)
    probs = LazyProbs(logits, sampler, tree, before)
    shared = sampler.probs(logits, [before.extended([4])] * len(tree))
    assert np.array_equal(probs[0], shared[0])
    assert all(abs(probs[node] - shared[node]).max() > 1e-3 for node in (1, 3, 4, 5, 6))


def test_only_rows_asked_for_are_computed() -> None:
    tree, logits = tree_and_logits()
    probs = LazyProbs(logits, SAMPLERS[1], tree, Context([5], prompt=1))
    assert probs[3] is probs[3]
    assert set(probs.rows) == {3}


# Values out of range

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, INFINITE, NAN)),
        *(("top_k", value) for value in (-1,)),
        *(("top_p", value) for value in (0.0, -0.5, 1.01, NAN)),
        *(("min_p", value) for value in (-0.01, 1.01, NAN)),
        *(("repetition_penalty", value) for value in (0.0, -1.0, NAN, INFINITE)),
        *(("presence_penalty", value) for value in (INFINITE, NAN)),
        *(("frequency_penalty", value) for value in (INFINITE, NAN)),
    ],
)
def test_values_out_of_range_name_option_and_value(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .*, got {value}"):
        Sampling(**{name: value})


@pytest.mark.parametrize("token", [-1, 10, 99])
def test_biases_of_unknown_tokens_are_refused(token: int) -> None:
    with pytest.raises(ValueError, match=rf"logit_bias names tokens outside 0\.\.9: \[.*{token}"):
        Sampling(1.0, logit_bias={3: 1.0, token: 1.0}).probs(rows(10))


def test_a_penalty_without_its_context_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Sampling(1.0, presence_penalty=1.0).probs(rows(10), [Context([1], 0)])


# The likeliest tokens


def test_likeliest_tells_apart_what_32_bits_do_not() -> None:
    logits = np.zeros((1, 1000))
    logits[0, [300, 301]] = 1.0, 1.0 + 1e-12
    assert topk(logits, 1).tolist() == [[301]]
    assert Sampling().probs(logits).argmax() == 301


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("vocab", [10, 256, 4096, 8192, 8193, 8447, 49152, 50257])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_likeliest_equals_topk(vocab: int, count: int, dtype: type) -> None:
    torch.manual_seed(vocab + count)
    logits = torch.randn(5, vocab).numpy().astype(dtype)
    # all winners in the odd rest at the end
    logits[0, -count:] = np.arange(count) + 10
    logits[1, :count] = np.arange(count) + 10  # all winners in one block
    found = topk(logits, count)
    assert all(len(set(row)) == count for row in found.tolist())
    assert np.array_equal(found, (-logits).argsort(-1)[:, :count])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 2},
        {"top_p": 0.5},
        {"min_p": 0.5},
        {"repetition_penalty": 50.0},
        {"presence_penalty": 50.0},
        {"frequency_penalty": 50.0},
        {"logit_bias": {3: 50.0}},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draw_heeds_every_option(temperature: float, options: dict) -> None:
    logits = np.random.default_rng(0).standard_normal((1, 40), np.float32)
    likely = topk(logits, 5)[0].tolist()
    before = Context([*likely, *likely], prompt=5)
    sampler, tree = Sampling(temperature, **options), DraftTree.chain([likely[0]])
    probs = LazyProbs(logits, sampler, tree, before)
    drawn = [probs.draw(0, Rng(seed)) for seed in range(40)]
    assert drawn == [Rng(seed).draw(probs[0]) for seed in range(40)]
    plain = [
        LazyProbs(logits, Sampling(temperature), tree, before).draw(0, Rng(seed))
        for seed in range(40)
    ]
    cuts_only = temperature == 0.0 and options.keys() & {"top_k", "top_p", "min_p"}
    assert (drawn == plain) == (not options or bool(cuts_only))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}])
def test_banning_most_tokens_gives_what_banning_them_one_by_one_does(
    temperature: float, more: dict[str, Any]
) -> None:
    logits = np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)
    banned = dict.fromkeys(range(7, 31), -np.inf)
    found = Sampling(temperature, logit_bias=banned, **more).probs(logits)
    masked = np.where(np.isin(np.arange(40), list(banned)), -np.inf, logits)
    np.testing.assert_allclose(found, Sampling(temperature, **more).probs(masked), atol=1e-6)
    assert (found[:, list(banned)] == 0).all()
    logits[2, 3] = np.nan
    assert np.isnan(Sampling(1.0, logit_bias=banned).probs(logits)).all(-1).tolist() == [
        row == 2 for row in range(5)
    ]
