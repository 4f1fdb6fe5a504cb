"""Ways to learn more per hour do what they say."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from draftwood_torch.heads.eagle import EagleHead
from draftwood_train.losses import (
    CHUNK,
    LIKELY,
    LOSSES,
    head_losses,
    lk_hybrid,
    loss_at,
    sampled_tokens,
)
from draftwood_train.recipe import PackedRows
from draftwood_train.recipes.eagle import EagleRecipe, _counts, _counts_later
from draftwood_train.rejections import is_first, rejected
from draftwood_train.unrolled import all_places, drawn_places, shifted
from training_cases import packing, target, texts

RECIPE = EagleRecipe(unroll=3, unroll_from=0.0, noise=0.0)


def setting(recipe: EagleRecipe = RECIPE) -> tuple[EagleHead, PackedRows]:
    torch.manual_seed(0)
    head = recipe.build(target())
    assert isinstance(head, EagleHead)
    return head, next(packing(texts(9, seed=5)).batches())


def gradients(
    recipe: EagleRecipe, progress: float = 0.5
) -> tuple[dict[str, Tensor], float, Mapping[str, float]]:
    head, rows = setting(recipe)
    torch.manual_seed(3)
    loss, figures = recipe.loss(head, rows, target(), progress)
    loss.backward()
    found = {name: each.grad for name, each in head.named_parameters() if each.grad is not None}
    return found, float(loss.detach()), figures


@pytest.mark.parametrize("window", [None, 5])
def test_later_steps_at_some_places_are_those_at_all(window: int | None) -> None:
    recipe = replace(RECIPE, window=window)
    head, rows = setting(recipe)
    chosen = drawn_places(_counts(rows, 2), 0.5)
    assert chosen is not None
    whole = list(recipe._unrolled(head, rows, target(), 3))
    some = list(recipe._unrolled(head, rows, target(), 3, chosen))
    row = torch.arange(len(chosen))[:, None]
    assert torch.equal(whole[0].states, some[0].states)
    for one, two in zip(whole[1:], some[1:], strict=True):
        assert torch.allclose(one.states[row, chosen], two.states, atol=1e-6)
        assert torch.equal(one.counts[row, chosen], two.counts)
        assert torch.equal(one.of(rows.tokens)[row, chosen], two.of(rows.tokens))
    others = list(recipe._unrolled(head, rows, target(), 2, chosen.roll(1, 0)))
    assert not torch.allclose(whole[1].states[row, chosen], others[1].states, atol=1e-3)


def test_a_share_of_places_is_drawn_among_those_that_count() -> None:
    allowed = torch.rand(4, 200, generator=torch.Generator().manual_seed(0)) < 0.5
    chosen = drawn_places(allowed, 0.25)
    assert chosen is not None
    assert chosen.shape[1] == -(-int(allowed.sum(-1).max()) // 4)
    row = torch.arange(4)[:, None]
    assert allowed[row, chosen].sum(-1).tolist() == (-(-allowed.sum(-1) // 4)).tolist()
    assert all(len(set(places)) == len(places) for places in chosen.tolist())
    assert drawn_places(allowed, 1.0) is None
    every = all_places(allowed)
    assert int(allowed[row, every].sum()) == int(allowed.sum())


def test_a_share_is_of_the_places_that_each_row_has() -> None:
    allowed = torch.arange(200) < torch.tensor([[200], [100], [12], [1], [0]])
    chosen = drawn_places(allowed, 0.25)
    assert chosen is not None
    drawn = allowed[torch.arange(5)[:, None], chosen].sum(-1)
    assert drawn.tolist() == [50, 25, 3, 1, 0]
    assert all(len(set(places)) == 50 for places in chosen.tolist())


def test_places_that_fill_rows_up_count_at_no_later_step() -> None:
    _, rows = setting()
    counted = torch.stack([_counts(rows, ahead) for ahead in (2, 3)])
    allowed = _counts_later(rows, 3)
    assert torch.equal(allowed, counted.any(0))
    chosen = drawn_places(allowed, 0.5)
    assert chosen is not None
    row = torch.arange(len(chosen))[:, None]
    most = [-(-int(each) // 2) for each in allowed.sum(-1)]
    assert [int(each.sum()) for each in allowed[row, chosen]] == most


def test_later_steps_learn_the_same_on_average_at_a_quarter_of_the_places() -> None:
    whole, _, _ = gradients(RECIPE)
    found = []
    head, rows = setting()
    for seed in range(60):
        torch.manual_seed(seed)
        head.zero_grad()
        replace(RECIPE, later_share=0.25).loss(head, rows, target(), 0.5)[0].backward()
        found.append(torch.cat([each.grad.flatten() for each in head.parameters()]))  # type: ignore[union-attr]
    wanted = torch.cat([each.flatten() for each in whole.values()])
    mean = torch.stack(found).mean(0)
    assert torch.nn.functional.cosine_similarity(mean, wanted, 0) > 0.98
    assert not torch.allclose(found[0], found[1])


def test_prompts_teach_where_that_is_asked_for() -> None:
    whole, loss, _ = gradients(replace(RECIPE, prompts=True))
    head, rows = setting()
    assert not bool(rows.is_answer.all())
    torch.manual_seed(3)
    every = replace(rows, is_answer=rows.segments >= 0)
    expected, _ = RECIPE.loss(head, every, target(), 0.5)
    assert loss == float(expected.detach()) != gradients(RECIPE)[1]
    expected.backward()
    for name, each in head.named_parameters():
        assert each.grad is None or torch.equal(each.grad, whole[name])
    rows.log_normalizer[~rows.is_answer] = 0.0  # as where states are recomputed
    with pytest.raises(ValueError, match="--states stored"):
        replace(RECIPE, prompts=True).loss(head, rows, target(), 0.5)


def law(rows: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States of a drafter and a target, the target's normaliser, and their head."""
    drawn = torch.Generator().manual_seed(seed)
    head = torch.randn(vocabulary, 8, generator=drawn)
    own, true = torch.randn(2, rows, 8, generator=drawn).unbind()
    return own, true, (true @ head.T).logsumexp(-1), head


@pytest.mark.parametrize("name", ["kl", "lk-hybrid"])
def test_sampled_rows_estimate_the_loss_and_its_gradient(name: str) -> None:
    own, true, normalizer, head = law(24, 600, seed=1)

    def computed(sampled: int) -> tuple[Tensor, Tensor]:
        states = own.clone().requires_grad_()
        losses, _ = head_losses(states, true, normalizer, head, LOSSES[name], sampled)
        losses.sum().backward()
        assert states.grad is not None
        return losses.detach(), states.grad

    exact, slope = computed(0)
    torch.manual_seed(0)
    many = [computed(150) for _ in range(200)]
    mean = torch.stack([each for each, _ in many]).mean(0)
    slopes = torch.stack([each for _, each in many]).mean(0)
    assert torch.allclose(mean, exact, rtol=0.05, atol=0.02)
    assert torch.nn.functional.cosine_similarity(slopes.flatten(), slope.flatten(), 0) > 0.99
    without = own @ head.T  # what the sampled tokens stand for is not counted: a wrong loss
    torch.manual_seed(0)
    chosen, _ = sampled_tokens(true @ head.T - normalizer[:, None], 150)
    log_q = without[:, chosen].log_softmax(-1)
    p = (true @ head.T - normalizer[:, None])[:, chosen].exp()
    p = p / p.sum(-1, keepdim=True)
    wrong = (p * (p.log() - log_q)).sum(-1)
    assert abs(float((wrong - exact).mean())) > 3 * abs(float((mean - exact).mean()))


def test_sampled_tokens_are_the_likely_ones_and_some_others() -> None:
    _, true, normalizer, head = law(CHUNK, 600, seed=2)
    log_p = (true @ head.T - normalizer[:, None])[:4]
    chosen, stands_for = sampled_tokens(log_p, 50)
    likely = set((log_p.exp() > LIKELY).any(0).nonzero()[:, 0].tolist())
    assert likely <= set(chosen.tolist())
    assert len(chosen) == len(set(chosen.tolist())) == len(likely) + 50
    assert float(stands_for.exp().sum()) == pytest.approx(600, rel=1e-5)
    chosen, stands_for = sampled_tokens(log_p, 600)
    assert chosen.tolist() == list(range(600))
    assert not stands_for.any()


def test_the_loss_changes_to_lk_in_the_last_part() -> None:
    assert loss_at("kl", 2 / 3, 0.6) is LOSSES["kl"]
    assert loss_at("kl", 2 / 3, 0.7) is lk_hybrid
    recipe = replace(RECIPE, lk_from=0.5)
    assert gradients(recipe, 0.4)[1] == gradients(RECIPE, 0.4)[1]
    hybrid = replace(RECIPE, loss_name="lk-hybrid")
    assert gradients(recipe, 0.6)[1] == gradients(hybrid, 0.6)[1] != gradients(RECIPE, 0.6)[1]


def by_hand(right: Tensor, counts: Tensor, rows: PackedRows) -> set[tuple[int, int, int]]:
    """Rejected drafts, text by text, token by token."""
    found = set()
    for row in range(right.shape[1]):
        for segment in range(int(rows.segments[row].max()) + 1):
            places = (rows.segments[row] == segment).nonzero()[:, 0].tolist()
            answer = next(each for each in places if rows.is_answer[row, each])
            place = max(answer - 1, places[0])
            while place <= places[-1]:
                step = 0
                while step < len(right) and right[step, row, place] and counts[step, row, place]:
                    step += 1
                if step < len(right) and counts[step, row, place]:
                    found.add((step, row, place))
                place += step + 1
    return found


def test_rejected_drafts_are_those_of_decoding_through_the_texts() -> None:
    _, rows = setting()
    counts = torch.stack([_counts(rows, step + 1) for step in range(3)])
    right = torch.rand(counts.shape, generator=torch.Generator().manual_seed(4)) < 0.6
    found = rejected(right, counts, rows).nonzero().tolist()
    assert {tuple(each) for each in found} == by_hand(right, counts, rows)
    assert {step for step, _, _ in found} == {0, 1, 2}
    assert not rejected(torch.ones_like(right), counts, rows).any()


def test_the_first_is_told_from_the_rest() -> None:
    head, rows = setting()
    step = next(RECIPE._unrolled(head, rows, target(), 1))
    tokens = shifted(rows.tokens, 2)
    right = is_first(step.states, tokens, step.counts, target())
    best = target().draft_tokens[(step.states @ target().head.T).argmax(-1)]
    assert torch.equal(right, (best == tokens) & step.counts)


@pytest.mark.parametrize("variant", ["eagle-1", "fspad", "eagle-3"])
def test_a_step_without_a_place_that_counts_costs_nothing(
    variant: Literal["eagle-1", "fspad", "eagle-3"],
) -> None:
    head, rows = setting()
    step = next(RECIPE._unrolled(head, rows, target(), 1))
    recipe, loss = replace(RECIPE, variant=variant), LOSSES["kl"]
    none = replace(step, counts=torch.zeros_like(step.counts))
    assert recipe._step_loss(none, rows, target(), loss) == (0, 0)
    assert float(recipe._step_loss(step, rows, target(), loss)[0].detach()) > 0


def test_replay_learns_from_rejected_drafts_beside_first_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = replace(RECIPE, replay=0.3)
    assert gradients(recipe, 0.6)[1] == gradients(RECIPE, 0.6)[1]
    found, loss, figures = gradients(recipe, 0.8)
    assert figures["rejected"] > 5
    assert loss != gradients(RECIPE, 0.8)[1]
    assert all(bool(each.isfinite().all()) for each in found.values())
    name = "draftwood_train.recipes.eagle.rejected"
    monkeypatch.setattr(name, lambda right, counts, rows: torch.zeros_like(counts))
    first = gradients(replace(RECIPE, unroll=1))[1]
    assert gradients(recipe, 0.8)[1] == pytest.approx(first / 2, rel=1e-6)
    monkeypatch.setattr(name, lambda right, counts, rows: counts & (right | ~right))
    everywhere, steps = gradients(recipe, 0.8)[1], gradients(RECIPE)[2]
    assert everywhere != pytest.approx(loss, rel=1e-3)
    assert len(steps) == 3
