"""Models of learned positions, which have nothing behind their context, however small it is."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftwood import methods
from draftwood.costs.curve import measure
from draftwood.drafters import Nothing
from draftwood.engine import Options, generate
from draftwood.sources.bigram_prior import BigramPrior
from draftwood.sources.stored_prior import StoredPrior
from draftwood.stats import Step
from draftwood.verifiers import Match
from draftwood_torch.models.transformers import TransformersModel

VOCAB = 40
TEXT = [token % VOCAB for token in range(70)]


def model_of(context: int) -> TransformersModel:
    torch.manual_seed(context)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=context,
        n_embd=16,
        n_layer=1,
        n_head=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return TransformersModel(GPT2LMHeadModel(config).eval())


def ticking() -> Iterator[float]:
    now = 0.0
    while True:
        yield (now := now + 1e-3)


def tokens_of(steps: Iterator[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("context", range(1, 65))
def test_auto_drafts_in_any_context(context: int) -> None:
    model, options = model_of(context), Options(max_new_tokens=70)
    clock = ticking()
    curve = measure(model, [1, 2, 4, 8], seconds=1.0, rounds=2, clock=lambda: next(clock))
    assert curve(4) >= curve(1) > 0.0
    prior = StoredPrior(model, TEXT)
    assert len(prior.table.tokens) == (VOCAB if context > 1 else 0)
    auto = methods.build("auto", model, curve=curve, prior=prior.table)
    for prompt in {1, context // 2, context - 1} & set(range(1, context)):
        wanted = tokens_of(generate(model, Nothing(), Match(), TEXT[:prompt], options))
        found = tokens_of(generate(model, auto.drafter, auto.verifier, TEXT[:prompt], options))
        assert found == wanted
        assert len(found) == min(70, context - prompt + 1)


def test_a_prior_reads_as_much_of_its_text_as_fits() -> None:
    model = model_of(8)
    found, wanted = (BigramPrior.of(model, before) for before in (TEXT, TEXT[-7:]))
    assert np.array_equal(found.tokens, wanted.tokens)
    assert np.array_equal(found.probs, wanted.probs)
    assert not np.array_equal(found.probs, BigramPrior.of(model, TEXT[:7]).probs)


def test_a_curve_is_measured_as_far_as_trees_fit() -> None:
    assert list(measure(model_of(3), [1, 4], seconds=1.0).nodes) == [1]
    assert list(measure(model_of(6), [1, 4], seconds=1.0).nodes) == [1, 4]
