"""Log-probabilities of prompts, read while they run."""

from collections.abc import Sequence

import pytest
import torch

from draftwood import engine
from draftwood.drafters import Drafter, Eagle, Nothing
from draftwood.engine import Options, StepBudget
from draftwood.engine.scheduler import run_all
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.testing import tiny_llama
from draftwood.verifiers import Rejection
from draftwood_torch.models.transformers import TransformersModel
from tiny_heads import tiny_eagle

PROMPT = [(7 * place + place // 5) % 60 for place in range(150)]  # more than two chunks


@pytest.fixture(scope="module")
def target() -> TransformersModel:
    return TransformersModel(tiny_llama(0, layers=4, context=256))


def text(target: TransformersModel, drafter: Drafter) -> engine.Sequence:
    options = Options(Sampling(1.0), 12, seed=3)
    return engine.Sequence(target, drafter, Rejection(), PROMPT, options)


def tokens_of(sequence: engine.Sequence) -> list[int]:
    return [token for _, step in run_all([sequence]) for token in step.tokens]


def wanted(target: TransformersModel) -> torch.Tensor:
    session = target.start()
    rows = session.extend(PROMPT).logits.double().log_softmax(-1)
    session.close()
    return rows


def drafters(target: TransformersModel) -> Sequence[Drafter]:
    return Nothing(), Eagle(tiny_eagle(target), target, Widths((2, 1)))


def test_each_token_of_the_prompt_has_its_own_and_the_text_stays(target: TransformersModel) -> None:
    laws = wanted(target)
    for drafter in drafters(target):
        recorded = text(target, drafter)
        assert recorded.prompt_logprobs == ()
        recorded.record_prompt(2)
        assert tokens_of(recorded) == tokens_of(text(target, drafter))
        first, *others = recorded.prompt_logprobs
        assert first is None
        assert len(others) == len(PROMPT) - 1
        for place, found in enumerate(others):
            assert found is not None
            assert found.token == PROMPT[place + 1]
            assert found.logprob == pytest.approx(float(laws[place, found.token]), abs=1e-4)
            assert set(found.top) == set(laws[place].topk(2).indices.tolist())


def test_a_text_that_was_preempted_records_nothing_twice(target: TransformersModel) -> None:
    sequence = text(target, Nothing())
    sequence.record_prompt(1)
    for _ in range(2):
        sequence.commit(target.forward(sequence.plan(StepBudget(prompt_rows=64))), 0.0)
    known = list(sequence.prompt_logprobs)
    assert len(known) == 1 + 128
    sequence.preempt()
    while sequence.root < 0:
        sequence.commit(target.forward(sequence.plan(StepBudget(prompt_rows=50))), 0.0)
    assert list(sequence.prompt_logprobs)[:129] == known
    assert [each.token for each in sequence.prompt_logprobs if each] == PROMPT[1:]
    sequence.close()
