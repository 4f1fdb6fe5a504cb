"""A nested draft LM: every size learns, and begins as the smallest."""

from dataclasses import replace

import pytest
import torch

from draftwood_train.judging import all_counted, means
from draftwood_train.recipe import PackedRows
from draftwood_train.recipes.s2d import S2dRecipe, nested_states
from training_cases import packing, target, texts, trained


def some_rows() -> PackedRows:
    return all_counted(next(packing(texts(12, seed=0), reads=()).batches()))


def test_every_size_learns() -> None:
    recipe, rows, own = S2dRecipe(sizes=2), some_rows(), target()
    heads = (trained(recipe, rows, steps) for steps in (40, 0))
    judged = [recipe.judge(each, rows, own) for each in heads]
    assert judged[0].places == judged[1].places > 10
    after, before = map(means, judged)
    for size in ("size_1", "size_2", "block_efficiency"):
        assert after[size] > 1.3 * before[size]
    assert after["size_2"] == after["block_efficiency"]
    _, figures = recipe.loss(trained(recipe, rows, 0), rows, own, 0.0)
    assert set(figures) == {"overlap_size_1", "overlap_size_2"}


def test_the_loss_is_the_mean_over_sizes() -> None:
    """With weights that make both sizes one, it is the loss of either."""
    rows, own, small = some_rows(), target(), S2dRecipe(sizes=1)
    head = trained(small, rows, 3)
    alone, _ = small.loss(head, rows, own, 0.0)
    double = S2dRecipe(sizes=2, start_from="random")
    twice = double.build(own)
    twice.load_state_dict({**twice.state_dict(), **head.state_dict()})
    both, _ = double.loss(twice, rows, own, 0.0)
    assert both.item() != pytest.approx(alone.item(), rel=1e-4)  # the second layer is random
    for name, weight in twice.layers[1].named_parameters():  # type: ignore[index,union-attr]
        if "o_proj" in name or "down_proj" in name:
            weight.data.zero_()
    same, _ = double.loss(twice, rows, own, 0.0)
    assert same.item() == pytest.approx(alone.item(), rel=1e-5)


def test_at_first_all_sizes_say_what_the_targets_last_layer_says() -> None:
    recipe = S2dRecipe(sizes=3)
    donor = recipe.build(target()).layers[0]  # type: ignore[index]
    given = {name: torch.randn_like(each) for name, each in donor.named_parameters()}
    own = replace(target(), last_layers=[given], final_norm=torch.full((16,), 2.0))
    head = recipe.build(own)
    first, *others = nested_states(head, some_rows(), own)
    for other in others:
        torch.testing.assert_close(other, first)
    for name, each in head.layers[0].named_parameters():  # type: ignore[index,union-attr]
        assert torch.equal(each, given[name])
    random = S2dRecipe(sizes=2, start_from="random").build(own)
    one, two = nested_states(random, some_rows(), own)
    assert not torch.allclose(one, two)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one size"):
        S2dRecipe(sizes=0)
    with pytest.raises(ValueError, match="window must be whole numbers above 0"):
        S2dRecipe(window=0)
    with pytest.raises(ValueError, match="loss_name is one of"):
        S2dRecipe(loss_name="mse")  # type: ignore[arg-type]
