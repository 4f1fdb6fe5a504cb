"""Rules that keep the longest path they like: what they keep, and where they lose nothing."""

import numpy as np
import pytest
import torch

from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.testing import check_verifier
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Verifier
from draftwood_methods.verifiers import Relaxed
from draftwood_methods.verifiers.blockwise import Distance, TopN

CHAIN = DraftTree.chain([0, 3, 1, 2])
LOGITS = np.array(
    [
        [0.0, 1.0, 2.0, 1.5],  # 3 is second, half a nat behind
        [0.0, 3.0, 2.0, 1.0],  # 1 is first
        [0.0, 3.0, -1.0, 1.0],  # 2 is last, four nats behind
        [1.0, 0.0, 0.0, 0.0],
    ],
    np.float32,
)


def kept(rule: Verifier, temperature: float = 1.0) -> int:
    probs = LazyProbs(LOGITS, Sampling(temperature), CHAIN, Context([0], 1))
    return len(rule(CHAIN, probs, Rng(0, noise=False)).path)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_likeliest_tokens_will_do(temperature: float) -> None:
    assert [kept(TopN(count), temperature) for count in (1, 2, 3, 4)] == [0, 2, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_near_ids_will_do(temperature: float) -> None:
    assert [kept(Distance(most), temperature) for most in (0, 1, 2)] == [0, 3, 3]


def test_a_token_needs_its_rank_and_its_probability() -> None:
    assert [kept(Relaxed(beta, 9.0)) for beta in (1, 2, 3, 4)] == [0, 2, 2, 3]
    assert [kept(Relaxed(4, tau)) for tau in (0.0, 0.4, 0.6, 3.9, 4.1)] == [0, 0, 2, 2, 3]
    assert kept(Relaxed(4, 9.0), temperature=0.0) == 3


STRICTEST = [TopN(1), Distance(0), Relaxed(1, 9.0), Relaxed(9, 0.0)]


@pytest.mark.parametrize("rule", STRICTEST, ids=str)
def test_of_tokens_that_are_as_likely_the_first_will_do(rule: Verifier) -> None:
    logits, tree = np.array([[1.0, 1.0, 0.0]] * 2, np.float32), DraftTree.chain([2, 1])
    probs = LazyProbs(logits, Sampling(0.0), tree, Context([2], 1))
    verdict = rule(tree, probs, Rng(0, noise=False))
    assert (len(verdict.path), verdict.next_token) == (0, 0)


@pytest.mark.parametrize("rule", STRICTEST, ids=str)
def test_the_strictest_rule_is_the_greedy_walk(rule: Verifier) -> None:
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        logits = torch.randn(7, 5, generator=rng).numpy()
        tokens = [0, *torch.randint(5, (6,), generator=rng).tolist()]
        tree = DraftTree.of(tokens, [-1, 0, 0, 0, 1, 2, 3])
        probs = LazyProbs(logits, Sampling(0.0), tree, Context([0], 1))
        by_rule, by_match = (each(tree, probs, Rng(0, noise=False)) for each in (rule, Match()))
        texts = [
            [*(tokens[node] for node in verdict.path), verdict.next_token]
            for verdict in (by_rule, by_match)
        ]
        assert texts[0] == texts[1]


def test_a_banned_token_will_never_do() -> None:
    sampling = Sampling(0.0, logit_bias={3: float("-inf")})
    probs = LazyProbs(LOGITS, sampling, CHAIN, Context([0], 1))
    for rule in (TopN(4), Distance(9)):
        assert rule(CHAIN, probs, Rng(0, noise=False)).path == []


def test_they_are_lossy_and_say_so() -> None:
    assert not any(rule.exact_for for rule in (TopN, Distance, Relaxed))

    class Boastful(Relaxed):
        exact_for = frozenset({"distinct"})

    with pytest.raises(AssertionError):
        check_verifier(Boastful())


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        TopN(0)
    with pytest.raises(ValueError, match="difference of token ids"):
        Distance(-1)
    with pytest.raises(ValueError, match="beta"):
        Relaxed(0)
    with pytest.raises(ValueError, match="tau"):
        Relaxed(tau=-1.0)
    with pytest.raises(ValueError, match="tau"):
        Relaxed(tau=float("nan"))
