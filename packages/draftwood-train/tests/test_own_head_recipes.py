"""SpecDec's and LongSpec's drafters learn, and LongSpec sees what decoding will show it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood_methods.heads.longspec import LongspecHead
from draftwood_methods.heads.specdec import SpecdecHead
from draftwood_torch.heads import layers
from draftwood_train.judging import all_counted, means
from draftwood_train.loop import on_device
from draftwood_train.packing import moved as placed
from draftwood_train.recipe import DrafterRecipe, PackedRows, TargetWeights
from draftwood_train.recipes import longspec as recipes
from draftwood_train.recipes.longspec import LongspecRecipe, cache_seen, moved, target_cache
from draftwood_train.recipes.specdec import SpecdecRecipe, place_states
from training_cases import DIM, LAYERS, SIZES, packing, target, texts, trained

READ = LAYERS - 3


def donor() -> TargetWeights:
    """The target with layers to start from, and to make keys and values with."""
    torch.manual_seed(9)
    layer = LongspecHead(LongspecHead.config_type(SIZES)).layer
    last = [
        {name: torch.randn_like(each) * 0.3 for name, each in layer.named_parameters()}
        for _ in range(3)
    ]
    return replace(target(), last_layers=last, final_norm=torch.ones(DIM))


def some_rows(places: int = 24) -> PackedRows:
    return all_counted(next(packing(texts(12, seed=0), places=places, reads=(READ,)).batches()))


def learnt_by(recipe: DrafterRecipe, steps: int) -> Any:
    return trained(recipe, some_rows(), steps, donor())


@pytest.mark.parametrize(
    "recipe",
    [
        SpecdecRecipe(queries=4, anchors=24, start_from="random"),
        SpecdecRecipe(layers=0, queries=4, anchors=24, start_from="random"),
        LongspecRecipe(start_from="random"),
        LongspecRecipe(start_from="random", reads_cache=False, longest=0),
    ],
    ids=str,
)
def test_they_learn_what_follows(recipe: DrafterRecipe) -> None:
    new, old = learnt_by(recipe, 60), learnt_by(recipe, 0)
    after, before = (recipe.judge(each, some_rows(), donor()) for each in (new, old))
    assert after.places == before.places > 4
    gained = means(after)["block_efficiency"] - means(before)["block_efficiency"]
    assert gained > 0.3
    assert after.figures["guess_1"] > before.figures["guess_1"] + 0.2 * after.places


def test_places_that_share_a_query_are_told_apart_by_their_positions() -> None:
    """The paper's control."""
    head = learnt_by(SpecdecRecipe(queries=4, anchors=24, shares_query=True), 3)
    assert isinstance(head, SpecdecHead)
    assert head.queries.shape == (1, DIM)
    states = head.draft(head.caches(), donor().embedding[:5])
    assert len(states.unique(dim=0)) == 4


@pytest.mark.parametrize("window", [2048, 4, 2])
def test_specdecs_places_in_training_are_those_of_decoding(window: int) -> None:
    rows, own = some_rows(), donor()
    head = learnt_by(SpecdecRecipe(queries=3, anchors=8, window=window), 3)
    assert isinstance(head, SpecdecHead)
    row, segment = 0, rows.segments[0]
    own_places = (segment == 0).nonzero()[:, 0]
    chosen = torch.zeros_like(rows.is_answer)
    chosen[row, own_places[4]] = chosen[row, own_places[6]] = True
    states = place_states(head, rows, own, chosen)
    caches, embedded = head.caches(), own.embedding[rows.tokens[row, own_places]]
    for state, (start, stop) in zip(states, ((0, 5), (5, 7)), strict=True):
        torch.testing.assert_close(
            head.draft(caches, embedded[start:stop]), state, atol=1e-5, rtol=1e-4
        )


def test_longspecs_rows_in_training_are_those_of_decoding() -> None:
    rows, own, window = some_rows(), donor(), 4
    head = learnt_by(LongspecRecipe(window=window), 3)
    assert isinstance(head, LongspecHead)
    places = (rows.segments[0] == 0).nonzero()[:, 0]
    tokens = rows.tokens[0, places]
    keys, values = (each[0, :, places] for each in target_cache(rows, own, READ, rows.positions))
    embedded, ran = own.embedding[tokens], 5
    text = head.start()
    text.take(embedded[:ran], ran)
    text.read_from(keys[:, :ran], values[:, :ran])
    for depth in range(3):  # the root, and two nodes in a row
        wanted = recipes._states(
            head, rows, own, rows.positions, torch.full_like(rows.tokens, depth + 1)
        )
        seen = torch.ones(1, depth + 1, dtype=torch.bool)
        found = text.run(embedded[ran + depth :][:1], torch.tensor([depth]), seen)
        torch.testing.assert_close(found[0], wanted[0, places[ran + depth]], atol=1e-5, rtol=1e-4)


def test_positions_move_together_behind_the_first_few() -> None:
    rows = some_rows()
    torch.manual_seed(1)
    found = [moved(rows, 500) for _ in range(60)]
    offsets = torch.stack(found) - rows.positions
    assert int(torch.stack(found).max()) < 500
    assert int(offsets.max()) > 300
    for each in offsets:
        for own, places in zip(each, rows.positions, strict=True):
            kept = places[own == 0]
            assert not len(kept) or len(own[own > 0].unique()) <= 1
            if (own > 0).any():
                assert int(kept.max() if len(kept) else -1) < recipes.ANCHORS
    assert torch.equal(moved(rows, 0), rows.positions)


def test_rows_see_the_cache_as_far_back_as_drafts_do() -> None:
    rows = some_rows()
    for back in (1, 3):
        seen = cache_seen(rows, torch.full_like(rows.tokens, back))
        row, place, at = seen.nonzero().T
        same = rows.segments[row, place] == rows.segments[row, at]
        alone = (place == at) & (rows.positions[row, place] < back)
        assert bool((same & ((place - at >= back) | alone) | (rows.segments[row, place] < 0)).all())
        assert bool(seen.any(-1).all())


def test_wrong_settings_and_targets_are_refused() -> None:
    for wrong in ({"queries": 0}, {"anchors": 0}):
        with pytest.raises(ValueError, match="queries, anchors and window"):
            SpecdecRecipe(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_from"):
        SpecdecRecipe(start_from="nowhere")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window and depth"):
        LongspecRecipe(window=0)
    with pytest.raises(ValueError, match="longest"):
        LongspecRecipe(longest=-1)
    with pytest.raises(ValueError, match="loss_name is one of"):
        LongspecRecipe(loss_name="mse")  # type: ignore[arg-type]
    rows = some_rows()
    with pytest.raises(ValueError, match="weights are not known"):
        target_cache(rows, target(), READ, rows.positions)
    scaled = replace(donor(), other_keys=["rotary embeddings of another form", None, None])
    with pytest.raises(
        ValueError, match=f"layer {READ}, which has rotary embeddings of another form"
    ):
        LongspecRecipe().build(scaled)
    assert LongspecRecipe(reads_cache=False).build(scaled) is not None


def test_longspecs_keys_have_the_targets_biases_and_norms() -> None:
    own, rows = donor(), some_rows()
    known, sizes = own.last_layers[0], own.sizes
    torch.manual_seed(3)
    biases = {name: torch.randn(sizes.num_kv_heads * sizes.head_dim) for name in ("k", "v")}
    norm = torch.rand(sizes.head_dim) + 0.5
    more = {f"self_attn.{name}_proj.bias": each for name, each in biases.items()}
    more["self_attn.k_norm.weight"] = norm
    given = replace(own, last_layers=[{**known, **more}, *own.last_layers[1:]])
    keys, values = target_cache(rows, given, READ, rows.positions)
    state = layers.RmsNorm(DIM, sizes.epsilon)
    state.load_state_dict({"weight": known["input_layernorm.weight"]})
    read = state(rows.states[..., 0, :])
    wanted = [
        (read @ known[f"self_attn.{name}_proj.weight"].T + biases[name])
        .unflatten(-1, (-1, sizes.head_dim))
        .transpose(-2, -3)
        for name in ("k", "v")
    ]
    size = (wanted[0].square().mean(-1, keepdim=True) + sizes.epsilon).sqrt()
    key = layers.rotated(wanted[0] / size * norm, rows.positions, sizes.rope_theta)
    torch.testing.assert_close(keys, key, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(values, wanted[1], atol=1e-5, rtol=1e-5)


def test_all_that_a_recipe_reads_of_the_target_lies_on_its_device() -> None:
    """The device without numbers stands for an accelerator."""
    elsewhere = torch.device("meta")
    own = on_device(donor(), elsewhere, torch.bfloat16)
    rows = placed(some_rows(), elsewhere)
    keys, values = target_cache(rows, own, READ, rows.positions)
    assert {keys.device, values.device} == {elsewhere}
    assert own.final_norm is not None
    assert (own.final_norm.device, own.final_norm.dtype) == (elsewhere, torch.float32)
