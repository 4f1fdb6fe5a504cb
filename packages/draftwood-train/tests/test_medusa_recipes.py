"""Heads side by side learn their own places, and only Hydra's what depends on a drafted token."""

from dataclasses import replace

import pytest
import torch

from draftwood_torch.heads.medusa import MedusaHead
from draftwood_train.judging import all_counted, means
from draftwood_train.medusa_heads import MedusaHeads, level_states
from draftwood_train.recipe import Judged, PackedRows
from draftwood_train.recipes.hydra import HydraRecipe
from draftwood_train.recipes.medusa import MedusaRecipe
from training_cases import VOCAB, packing, target, texts, trained

RECIPES = {
    "medusa": MedusaRecipe(),
    "with the root": MedusaRecipe(reads_root=True),
    "hydra": HydraRecipe(),
}


def some_rows(seed: int = 0) -> PackedRows:
    rows = all_counted(next(packing(texts(12, seed)).batches()))
    return replace(rows, states=rows.final[:, :, None])


def judged(recipe: MedusaHeads, head: MedusaHead, rows: PackedRows) -> dict[str, float]:
    found: Judged = recipe.judge(head, rows, target())
    assert found.places > 10
    return means(found)


@pytest.mark.parametrize("name", RECIPES)
def test_every_head_learns_its_place(name: str) -> None:
    rows, recipe = some_rows(), RECIPES[name]
    before = judged(recipe, trained(recipe, rows, 0), rows)
    after = judged(recipe, trained(recipe, rows, 60), rows)
    # texts leave the draft vocabulary, which holds 24 tokens of 40, so 2.1 is all there is
    assert before["block_efficiency"] < 1.3
    assert after["block_efficiency"] > 1.6
    assert after["overlap"] > 4 * before["overlap"]
    assert all(after[f"guess_{level}"] > 0.15 for level in range(1, 5))


def test_states_in_the_wrong_places_teach_medusa_nothing() -> None:
    """A control: without the root its heads have nothing else to read."""
    rows, recipe = some_rows(), RECIPES["medusa"]
    order = torch.randperm(rows.tokens.numel(), generator=torch.Generator().manual_seed(5))
    shuffled = replace(rows, states=rows.states.flatten(0, 1)[order].view_as(rows.states))
    after = judged(recipe, trained(recipe, shuffled, 60), rows)
    assert after["block_efficiency"] < 1.3
    assert after["overlap"] < 0.1


@pytest.mark.parametrize("name", RECIPES)
def test_what_each_level_reads_in_training(name: str) -> None:
    """A token changes the levels that read it, at places before it, and no other."""
    recipe, rows = RECIPES[name], some_rows()
    torch.manual_seed(0)
    head = recipe.build(target())  # type: ignore[attr-defined]
    changed = rows.tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % VOCAB
    pairs = zip(
        level_states(head, rows, target()),
        level_states(head, replace(rows, tokens=changed), target()),
        strict=True,
    )
    for level, (one, other) in enumerate(pairs):
        differs = (one != other).any(-1)
        count = head.config.tokens(level)
        assert differs.nonzero().tolist() == [[0, 10 - back] for back in range(count, 0, -1)]


def test_levels_count_less_the_later_they_are() -> None:
    rows, recipe = some_rows(), MedusaRecipe(heads=2)
    head = recipe.build(target())
    alone, _ = MedusaRecipe(heads=1).loss(
        MedusaRecipe(heads=1).build(target()), rows, target(), 0.0
    )
    both, figures = recipe.loss(head, rows, target(), 0.0)
    with torch.no_grad():
        head.blocks[1].weight.fill_(0.3)
    worse, _ = recipe.loss(head, rows, target(), 0.0)
    assert set(figures) == {"overlap_1", "overlap_2"}
    second = (both.item() - alone.item() / 1.8) * 1.8 / 0.8
    assert second == pytest.approx(_second_level(rows), rel=1e-4)
    assert worse.item() > both.item()


def _second_level(rows: PackedRows) -> float:
    """KL of the target's law two places on from the one here, over the draft vocabulary."""
    known, total, count = target().head, 0.0, 0
    for row, segments in enumerate(rows.segments.tolist()):
        for place in range(len(segments) - 3):
            inside = segments[place + 2] == segments[place] >= 0
            guessed = rows.is_answer[row, place + 2] or (
                segments[place + 3] == segments[place] and rows.is_answer[row, place + 3]
            )
            if inside and guessed:
                p = (rows.final[row, place + 2] @ known.T).log_softmax(-1)
                q = (rows.final[row, place] @ known.T).log_softmax(-1)
                total, count = total + float((p.exp() * (p - q)).sum()), count + 1
    return total / count


def test_only_answers_are_learnt() -> None:
    rows, recipe = some_rows(), HydraRecipe()
    head = recipe.build(target())
    none = replace(rows, is_answer=torch.zeros_like(rows.is_answer))
    loss, _ = recipe.loss(head, none, target(), 0.0)
    assert loss.item() == 0
    assert recipe.judge(head, none, target()).places == 0


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one head"):
        MedusaRecipe(heads=0)
    with pytest.raises(ValueError, match="loss_name is one of"):
        HydraRecipe(loss_name="mse")  # type: ignore[arg-type]
