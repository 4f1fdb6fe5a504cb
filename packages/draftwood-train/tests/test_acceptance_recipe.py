"""An acceptance head learns how likely its LM's tokens are accepted, and changes nothing else."""

from typing import Any

import pytest
import torch

from draftwood_torch.heads.lm import LmHead
from draftwood_train.judging import means
from draftwood_train.packing import RowPacking
from draftwood_train.recipe import PackedRows
from draftwood_train.recipes.acceptance import (
    AcceptanceRecipe,
    drafts,
    drawn_tokens,
    skill_of,
    weighted_loss,
)
from draftwood_train.recipes.lm import LmRecipe
from training_cases import learnt, target, texts


def some_rows(count: int = 40, rows: int = 12) -> PackedRows:
    return next(iter(RowPacking(texts(count, seed=0), (), 2, 24, rows, 0).batches()))  # type: ignore[arg-type]


def test_it_learns_and_its_lm_stays() -> None:
    torch.manual_seed(0)
    rows, own, recipe = some_rows(), target(), AcceptanceRecipe(blocks=1)
    lm = LmRecipe(start_from="random").build(own)
    learnt(lm, LmRecipe(start_from="random"), rows, 12)  # so that it is right here and there
    head = recipe.build(own)
    head.load_state_dict({**head.state_dict(), **lm.state_dict()})
    before = recipe.judge(head, rows, own)
    learnt(head, recipe, rows, 400)
    after = recipe.judge(head, rows, own)
    assert means(before)["skill"] < 0.01
    assert means(after)["skill"] > 0.15
    assert before.paths == after.paths
    for name, weight in lm.state_dict().items():
        assert torch.equal(head.state_dict()[name], weight)


def test_labels_of_other_places_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with shuffled labels no more than their mean is learnt."""
    torch.manual_seed(0)
    rows, own, recipe = some_rows(), target(), AcceptanceRecipe(blocks=1)
    lm = LmRecipe(start_from="random").build(own)
    learnt(lm, LmRecipe(start_from="random"), rows, 12)
    head = recipe.build(own)
    head.load_state_dict({**head.state_dict(), **lm.state_dict()})

    def shuffled(*given: Any) -> Any:
        tokens, labels, counts = drafts(*given)
        labels[counts] = labels[counts][torch.randperm(int(counts.sum()))]
        return tokens, labels, counts

    with monkeypatch.context() as patched:
        patched.setattr("draftwood_train.recipes.acceptance.drafts", shuffled)
        learnt(head, recipe, rows, 400)
    judged = recipe.judge(head, rows, own)
    assert means(judged)["skill"] < 0.05


def test_the_mean_label_is_the_overlap_of_both_laws() -> None:
    torch.manual_seed(1)
    own, true, head = torch.randn(1, 8), torch.randn(1, 8), torch.randn(6, 8)
    logits = true @ torch.cat([head, torch.randn(2, 8)]).T  # two tokens are not drafted
    normalizer = logits.logsumexp(-1)
    q = (own @ head.T).softmax(-1)
    p = (logits - normalizer[:, None]).exp()[:, :6]
    count = 40_000
    tokens, chances = drawn_tokens(
        *(own.expand(count, -1), true.expand(count, -1), normalizer.expand(count), head)
    )
    assert chances.mean().item() == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.01)
    shares = torch.bincount(tokens, minlength=6) / count
    torch.testing.assert_close(shares, q[0], atol=0.01, rtol=0)
    wanted = (p / q).clamp(max=1.0)[0][tokens]
    torch.testing.assert_close(chances, wanted)


def test_drafts_stand_at_answers_behind_the_tokens_they_follow() -> None:
    rows, own = some_rows(), target()
    head = AcceptanceRecipe(blocks=1).build(own)
    assert isinstance(head, LmHead)
    tokens, labels, counts = drafts(head, rows, own)
    assert torch.equal(tokens[~counts], rows.tokens[~counts])
    assert bool(torch.isin(tokens[counts], own.draft_tokens).all())
    assert bool(((labels >= 0) & (labels <= 1)).all())
    follows = torch.zeros_like(counts)
    follows[:, 1:] = (rows.segments[:, 1:] == rows.segments[:, :-1]) & (rows.segments[:, 1:] >= 0)
    assert not bool((counts & ~follows).any())
    assert bool((counts | ~(rows.is_answer & follows)).all())


def test_a_rejection_counts_more() -> None:
    logits, labels = torch.tensor([0.3, -1.2]), torch.tensor([1.0, 0.25])
    p = logits.sigmoid()
    wanted = -(p[0].log() + 0.25 * p[1].log() + 6 * 0.75 * (1 - p[1]).log()) / 2
    assert weighted_loss(logits, labels, 6.0).item() == pytest.approx(float(wanted), rel=1e-5)
    best = torch.logit(torch.tensor(0.625 / (0.625 + 6 * 0.375)))
    assert skill_of(best.expand(2), labels, 6.0) == pytest.approx(0.0, abs=1e-5)
    assert skill_of(torch.tensor([6.0, -3.0]), labels, 6.0) > 0.3
    assert skill_of(torch.zeros(0), torch.zeros(0), 6.0) == 0.0


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="a block"):
        AcceptanceRecipe(blocks=0)
    with pytest.raises(ValueError, match="window must be whole numbers above 0"):
        AcceptanceRecipe(window=0)
    with pytest.raises(ValueError, match="rejection must be above 0"):
        AcceptanceRecipe(rejection=0.0)
