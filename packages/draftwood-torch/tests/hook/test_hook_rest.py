"""Batches rest from draft tokens that are never kept, and their texts stay what they are."""

import random
from typing import Any

import pytest
import torch
from test_hook_models import ALONE, MODELS, REFUSED, made
from torch import Tensor

import draftwood
from draftwood.engine import InTurn, StepBudget
from draftwood.sampling import SharedPass
from draftwood.stats import Stats
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.hook import drafted
from draftwood_torch.hook.alone import run_alone
from draftwood_torch.models.transformers import TransformersModel
from thinning import thinned

LONG = 90


def rows(count: int = 6) -> Tensor:
    return torch.tensor([random.Random(row).choices(range(1, 64), k=9) for row in range(count)])


def padded() -> dict[str, Tensor]:
    mask = torch.ones(6, 9, dtype=torch.long)
    for row in range(6):
        mask[row, :row] = 0
    return {"inputs": rows() * mask, "attention_mask": mask}


@pytest.fixture
def always_resting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No draft token is ever good enough; how many rounds rested."""
    rested: list[int] = []
    monkeypatch.setattr(drafted, "LEAST_KEPT", 100.0)

    def counted(*arguments: Any) -> Tensor:
        rested.append(1)
        return run_alone(*arguments)

    monkeypatch.setattr(drafted, "run_alone", counted)
    return rested


@pytest.mark.parametrize("method", thinned(["lookup", "recycling", "layer-skip", "suffix"], 4))
@pytest.mark.parametrize("end", [None, 9])
def test_greedy_batches_that_rest_write_what_generate_writes(
    method: str, end: int | None, always_resting: list[int]
) -> None:
    model, options = (
        tiny_llama(layers=4),
        {"do_sample": False, "max_new_tokens": LONG, "pad_token_id": 0},
    )
    for inputs in ({"inputs": rows()}, padded()):
        wanted = model.generate(**inputs, eos_token_id=end, **options)
        hook = draftwood.custom_generate(method)
        assert torch.equal(
            model.generate(**inputs, eos_token_id=end, custom_generate=hook, **options), wanted
        )
    assert sum(always_resting) > 40


def test_a_batch_rests_under_autocast(always_resting: list[int]) -> None:
    model, options = tiny_llama(layers=3), {"do_sample": False, "max_new_tokens": LONG}
    hook = draftwood.custom_generate("lookup")
    with torch.autocast("cpu", torch.bfloat16):
        found = model.generate(rows(), custom_generate=hook, **options)
    assert found.shape[1] > rows().shape[1] + LONG // 2
    assert sum(always_resting) > 10


def test_drafts_from_hidden_states_never_rest(always_resting: list[int]) -> None:
    model = tiny_llama(layers=4)
    hook = draftwood.custom_generate("del")
    model.generate(rows(), do_sample=False, max_new_tokens=LONG, custom_generate=hook)
    assert not always_resting


@pytest.mark.parametrize("method", ["lookup", "recycling"])
def test_a_seeds_text_does_not_depend_on_rest(method: str, always_resting: list[int]) -> None:
    texts, model = [], tiny_llama(layers=3)
    for name in ("plain", method):
        torch.manual_seed(5)
        hook = draftwood.custom_generate(name)
        options = {"do_sample": True, "top_k": 0, "repetition_penalty": 1.2, "max_new_tokens": LONG}
        texts.append(model.generate(rows(), custom_generate=hook, **options))
    assert torch.equal(*texts)
    assert sum(always_resting) > 40


def test_rejection_sampling_never_rests(always_resting: list[int]) -> None:
    """Its draws depend on what was drafted, so that a text for a seed would change with the
    batch."""
    model = tiny_llama(layers=3)
    hook = draftwood.custom_generate("rsd-s", draft_model=tiny_llama(seed=1, layers=1))
    model.generate(rows(), do_sample=True, max_new_tokens=30, custom_generate=hook)
    assert not always_resting


ONE_BY_ONE = "gpt-neox-japanese"
"""Model whose sequences never share a pass, and so never rest."""


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in (*REFUSED, *ALONE, ONE_BY_ONE)]
)
def test_a_run_of_single_tokens_is_a_run_of_lone_roots(name: str) -> None:
    """Rows of different lengths, windows among them."""
    target = TransformersModel(made(name))
    sessions = [target.start() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.extend([(5 * number + 3 * place) % 50 + 2 for place in range(3 + 5 * number)])
    for tokens in ([4, 9, 7], [8, 8, 3]):
        pairs = zip(sessions, tokens, strict=True)
        wanted = [
            session.forward(DraftTree.of([token], [-1])).logits[0] for session, token in pairs
        ]
        given = run_alone(target, sessions, tokens).logits
        assert (given - torch.stack(wanted)).abs().max() <= 1e-4 * given.std()
        for session in sessions:
            session.commit([0])


def test_good_draft_tokens_never_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Stats] = []
    monkeypatch.setattr(drafted, "run_alone", None)
    prompt = torch.tensor([[5, 6, 7, 8] * 6]).expand(4, -1)
    model = tiny_llama(layers=2)
    hook = draftwood.custom_generate("lookup", report=reports.append)
    bias = {"sequence_bias": [[[a, b], 99.0] for a, b in ((5, 6), (6, 7), (7, 8), (8, 5))]}
    model.generate(prompt, do_sample=False, max_new_tokens=60, custom_generate=hook, **bias)
    assert reports[0].block_efficiency > 3


def test_rows_draft_as_part_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter is told of the nodes that other rows ran, and of the tokens expected of them."""
    loads, sizes, draft = list[SharedPass](), list[int](), InTurn.draft

    def told(row: InTurn, budget: StepBudget) -> Any:
        loads.append(budget.shared)
        found = draft(row, budget)
        sizes.append(len(found[0].tree))
        return found

    monkeypatch.setattr(InTurn, "draft", told)
    monkeypatch.setattr(drafted, "LEAST_KEPT", 0.0)  # no rests
    model, options = tiny_llama(layers=2), {"do_sample": False, "max_new_tokens": 30}
    for count in (1, 3):
        loads.clear()
        sizes.clear()
        hook = draftwood.custom_generate("recycling")
        found = model.generate(rows(count), custom_generate=hook, **options)
        assert torch.equal(found, model.generate(rows(count), **options))
        if count == 1:
            assert set(loads) == {SharedPass(0, 0.0)}
    assert loads[:3] == [SharedPass(2, 2.0)] * 3  # behind the prompts, each with its first token
    for first in (3, 6, 9):  # of steps before any row ends
        before = sizes[first - 3 : first]
        assert [each.rows for each in loads[first : first + 3]] == [
            sum(before) - own for own in before
        ]
        assert all(each.tokens >= 2.0 for each in loads[first : first + 3])
    assert max(sizes) > 3
