"""The proofs that a benchmark gives: each passes on what is right, and catches what is wrong."""

from typing import Any

import numpy as np
import pytest
import torch

from draftwood.drafters import DraftModel
from draftwood.methods import Method, build
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import StochasticBeam, Widths
from draftwood.testing import tiny_llama
from draftwood.testing.promises import Mislabelled, ProbabilityOrder, tables
from draftwood.tree import DraftTree
from draftwood.verifiers import Rejection
from draftwood_bench.records.significance import SIGNIFICANCE, joint, two_sample
from draftwood_bench.run.identity import distribution_test, divergence, root_bound
from draftwood_bench.run.optimal import optimal_acceptance
from draftwood_torch.models.transformers import TransformersModel

pytestmark = pytest.mark.usefixtures("unchecked")


def p_values(method: Method, texts: int = 3, samples: int = 256) -> list[float]:
    target, _ = tables()
    answer = [1, 3, 2, 0, 2, 1, 1, 3, 0, 2]
    found = [
        distribution_test(target, method, Sampling(1.0), [0], answer, samples, 1000 * n)
        for n in range(texts)
    ]
    return [each.p_value for each in found if each is not None]


def test_lossless_rules_keep_the_law() -> None:
    _, draft = tables()
    for shape in (Widths((3,)), StochasticBeam(2, 2)):
        assert joint(p_values(Method(DraftModel(draft, shape), Rejection()))) > SIGNIFICANCE


@pytest.mark.parametrize(
    ("shape", "verifier"),
    [
        (ProbabilityOrder(Widths((3,))), Rejection()),
        (Mislabelled(Widths((3,), "greedy-plus-one"), "distinct"), Rejection()),
    ],
    ids=["siblings by probability", "likeliest called drawn"],
)
def test_wrong_rules_are_caught(shape, verifier) -> None:
    _, draft = tables()
    assert joint(p_values(Method(DraftModel(draft, shape), verifier))) < SIGNIFICANCE


def test_two_samples_of_one_law_are_told_apart_as_rarely_as_promised() -> None:
    rng, law = Rng(0), np.array([0.4, 0.3, 0.2, 0.05, 0.05])
    found = [
        two_sample([rng.draw(law) for _ in range(40)], [rng.draw(law) for _ in range(40)], seed)
        for seed in range(200)
    ]
    assert sum(p < 0.1 for p in found) <= 33  # 20 are expected; more than 33 come once in 500 times
    assert sum(p < 0.5 for p in found) >= 75
    assert min(found) > 1e-4


def test_two_samples_of_two_laws_are_told_apart() -> None:
    assert two_sample([0] * 30 + [1] * 34, [0] * 50 + [1] * 14) < 1e-3
    assert two_sample([5] * 9, [5] * 9) == 1.0
    with pytest.raises(ValueError, match="needs two samples, got 0 and 1"):
        two_sample([], [1])


@pytest.mark.parametrize("fails", [False, True])
def test_a_text_is_run_once_for_all_samples(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, answer, rows = list(range(1, 30)), [3, 4, 5], []
    models = [TransformersModel(tiny_llama(seed)) for seed in (0, 1)]
    run = TransformersModel.run

    def counting(self: TransformersModel, parts: Any, *more: Any, **named: Any) -> Any:
        rows.append((self, sum(len(part.tokens) for part in parts)))
        if fails and len(rows) > 20:
            raise MemoryError("no room")
        return run(self, parts, *more, **named)

    monkeypatch.setattr(TransformersModel, "run", counting)
    method = Method(DraftModel(models[1], Widths((2,))), Rejection())
    arguments = (models[0], method, Sampling(1.0), prompt, answer, 16, 0)
    if fails:
        with pytest.raises(MemoryError, match="no room"):
            distribution_test(*arguments)
    else:
        found = distribution_test(*arguments)
        assert found is not None
        long = [model for model, count in rows if count >= len(prompt)]
        assert long == [models[0], *models]  # distributions, and the text in target and draft model
    assert not any(model.pool.used for model in models)


def test_a_seed_below_0_is_a_seed_too() -> None:
    target, draft = tables()
    method = Method(DraftModel(draft, Widths((3,))), Rejection())
    answer = [1, 3, 2, 0, 2, 1, 1, 3, 0, 2]
    found = distribution_test(target, method, Sampling(1.0), [0], answer, 16, -4000)
    assert found == distribution_test(target, method, Sampling(1.0), [0], answer, 16, -4000)
    assert found is not None


def test_what_cannot_be_tested_is_not_tested() -> None:
    target, draft = tables()
    method = Method(DraftModel(draft, Widths((1,))), Rejection())
    # no token that a verifier decided about
    assert distribution_test(target, method, Sampling(1.0), [0], [1], 8, 0) is None
    # no draft token at all
    assert (
        distribution_test(target, build("plain", target), Sampling(1.0), [0], [1, 2, 3], 8, 0)
        is None
    )


def test_p_values_are_joined_by_fishers_rule() -> None:
    assert joint([0.3]) == pytest.approx(0.3)
    # x (1 - log x)
    assert joint([0.1, 0.1]) == pytest.approx(0.01 * (1 - torch.tensor(0.01).log().item()))
    with pytest.raises(ValueError, match="no p-value"):
        joint([])


def test_no_difference_is_excused_in_full_precision() -> None:
    model = TransformersModel(tiny_llama().to(torch.bfloat16))
    prompt, plain, other = [1, 2, 3], [4, 5, 6], [4, 9, 6]
    assert divergence(model, prompt, plain, list(plain), "bfloat16") is None
    found = divergence(model, prompt, plain, other, "bfloat16")
    strict = divergence(model, prompt, plain, other, "int8")
    assert found is not None
    assert strict is not None
    assert (found.position, found.plain_token, found.other_token) == (1, 5, 9)
    assert found.tolerance > 0
    assert (strict.tolerance, strict.tie, strict.margin) == (0.0, False, found.margin)


def test_a_tie_is_a_tie_in_half_precision_alone() -> None:
    model = TransformersModel(tiny_llama().to(torch.bfloat16))
    session = model.start()
    best, second = session.extend([1, 2, 3]).logits[-1].float().topk(2).indices.tolist()
    with torch.no_grad():  # the two likeliest tokens become equally likely
        model.hf_model.lm_head.weight[second] = model.hf_model.lm_head.weight[best]
    assert divergence(model, [1, 2, 3], [best], [second], "bfloat16").tie is True  # type: ignore[union-attr]
    assert divergence(model, [1, 2, 3], [best], [second], "float32").tie is False  # type: ignore[union-attr]


def test_the_bound_at_the_root() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    chosen = DraftTree.of([0, 1, 2], [-1, 0, 0])
    assert root_bound(chosen, p[None]) == pytest.approx(0.5)
    twice = DraftTree.of([0, 1, 1], [-1, 0, 0])
    assert root_bound(twice, p[None]) == pytest.approx(0.3)
    drawn = DraftTree(np.array([0, 1, 2]), np.array([-1, 0, 0]), q[None], "distinct")
    assert root_bound(drawn, p[None]) == pytest.approx(optimal_acceptance(p, q, 2, "distinct"))
    certain = np.array([0.0, 1.0, 0.0])
    assert root_bound(drawn, certain[None]) == float(1 in drawn.token_list[1:])
