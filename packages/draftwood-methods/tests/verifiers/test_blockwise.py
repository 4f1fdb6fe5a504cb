"""Lossy rules of blockwise parallel decoding: what they keep, at temperature 0 too."""

import numpy as np
import pytest
import torch

from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Verifier
from draftwood_methods.verifiers.blockwise import Distance, TopN

CHAIN = DraftTree.chain([0, 3, 1, 2])
LOGITS = np.array(
    [
        [0.0, 1.0, 2.0, 1.5],  # 3 is second
        [0.0, 3.0, 2.0, 1.0],  # 1 is first
        [0.0, 3.0, -1.0, 1.0],  # 2 is last
        [1.0, 0.0, 0.0, 0.0],
    ],
    np.float32,
)


def kept(rule: Verifier, temperature: float) -> int:
    probs = LazyProbs(LOGITS, Sampling(temperature), CHAIN, Context([0], 1))
    return len(rule(CHAIN, probs, Rng(0, noise=False)).path)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_likeliest_tokens_will_do(temperature: float) -> None:
    assert [kept(TopN(count), temperature) for count in (1, 2, 3, 4)] == [0, 2, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_near_ids_will_do(temperature: float) -> None:
    assert [kept(Distance(most), temperature) for most in (0, 1, 2)] == [0, 3, 3]


@pytest.mark.parametrize("rule", [TopN(1), Distance(0)], ids=lambda rule: rule.name)
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


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        TopN(0)
    with pytest.raises(ValueError, match="difference of token ids"):
        Distance(-1)
