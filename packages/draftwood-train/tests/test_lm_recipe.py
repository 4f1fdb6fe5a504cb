"""A draft LM learns its target's distributions, by every divergence."""

from dataclasses import replace

import pytest
import torch

from draftwood_train.divergences import DIVERGENCES, divergences
from draftwood_train.judging import all_counted, means
from draftwood_train.recipe import PackedRows
from draftwood_train.recipes.lm import LmRecipe
from training_cases import packing, target, texts, trained


def some_rows() -> PackedRows:
    return all_counted(next(packing(texts(12, seed=0), reads=()).batches()))


@pytest.mark.parametrize("loss", ["kl", "reverse-kl", "jsd", "tv", "lk-hybrid"])
def test_it_learns_what_follows(loss: str) -> None:
    recipe = LmRecipe(loss_name=loss, start_from="random")  # type: ignore[arg-type]
    rows, own = some_rows(), target()
    new, old = trained(recipe, rows, 40), trained(recipe, rows, 0)
    after, before = (means(recipe.judge(each, rows, own)) for each in (new, old))
    assert after["overlap"] > 1.5 * before["overlap"]
    assert after["block_efficiency"] > before["block_efficiency"]


@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_vanish_only_where_both_agree(name: str) -> None:
    torch.manual_seed(3)
    final, head = torch.randn(5, 8), torch.randn(11, 8)
    same = divergences(final, final, head, DIVERGENCES[name])
    other = divergences(torch.randn(5, 8), final, head, DIVERGENCES[name])
    assert same.abs().max() < 1e-6
    assert other.min() > 1e-3


def test_reverse_kl_is_kl_the_other_way_round() -> None:
    torch.manual_seed(4)
    one, other, head = torch.randn(5, 8), torch.randn(5, 8), torch.randn(11, 8)
    found = divergences(one, other, head, DIVERGENCES["reverse-kl"])
    log_q, log_p = (one @ head.T).log_softmax(-1), (other @ head.T).log_softmax(-1)
    wanted = torch.nn.functional.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(found, wanted)


def test_it_starts_as_the_end_of_its_target() -> None:
    recipe = LmRecipe()
    donor = recipe.build(target()).layers[0]  # type: ignore[index]
    given = {name: torch.randn_like(each) for name, each in donor.named_parameters()}
    head = recipe.build(replace(target(), last_layers=[given], final_norm=torch.full((16,), 2.0)))
    for name, each in head.layers[0].named_parameters():  # type: ignore[index,union-attr]
        assert torch.equal(each, given[name])
    assert torch.equal(head.norm.weight, torch.full((16,), 2.0))  # type: ignore[union-attr]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        LmRecipe(layers=0)
    with pytest.raises(ValueError, match="window must be whole numbers above 0"):
        LmRecipe(window=-1)
    with pytest.raises(ValueError, match="loss_name is one of"):
        LmRecipe(loss_name="mse")  # type: ignore[arg-type]
