"""Facts that recipes read of a target, beside what the target itself computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_models import save_model
from draftwood.loading.models import load_model
from draftwood.loading.weights import decoder_of
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood_train.data.states import states_of
from draftwood_train.recipe import DrafterRecipe, PackedRows, TargetWeights
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.lm import LmRecipe
from draftwood_train.recipes.longspec import LongspecRecipe, target_cache
from draftwood_train.recipes.specdec import SpecdecRecipe
from draftwood_train.target import CANNOT, _require_plain_head, layers_of, target_weights
from families import VOCAB, hf_model
from letters import LETTERS, letters

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

TOKENS = 7 * torch.arange(24) % VOCAB


def saved(family: str, folder: Path) -> str:
    """Folder of a model of a family, with a tokenizer of as many letters."""
    hf_model(family).save_pretrained(folder)
    letters(LETTERS[:VOCAB]).save_pretrained(folder)
    return str(folder)


def read(family: str, folder: Path) -> tuple[NativeModel, TargetWeights]:
    """A model of a family, and its weights for drafts of the whole vocabulary."""
    model = NativeModel(hf_model(family))
    return model, target_weights(model, saved(family, folder), torch.arange(VOCAB))


@pytest.mark.parametrize("family", ["llama", "granite", "cohere"])
def test_probabilities_of_the_output_rows_sum_to_one(family: str, tmp_path: Path) -> None:
    model, target = read(family, tmp_path)
    states, normalizers = states_of(model, TOKENS, (model.layers,))
    logits = states[:, 0] @ target.head.float().T
    sums = (logits - normalizers[:, None]).exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=2e-2, rtol=0)


@pytest.mark.parametrize(
    ("recipe", "copied"),
    [
        (LmRecipe(layers=5), 5),
        (LmRecipe(), 1),
        (LmRecipe(layers=5, start_from="random"), 0),
        (SpecdecRecipe(layers=3), 4),
        (EagleRecipe(layers=5, start_from="last-layer"), 5),
    ],
    ids=str,
)
def test_drafters_of_many_layers_start_from_as_many(
    recipe: DrafterRecipe, copied: int, tmp_path: Path
) -> None:
    name = save_model(tmp_path / "model", layers=6)
    model = load_model(name, "float32", "cpu").model
    own = target_weights(model, name, torch.arange(30), layers_of(recipe))
    head: Any = recipe.build(own)
    layers = [*head.layers, *([head.drafting] if recipe.name == "specdec" else [])]
    every = target_weights(model, name, torch.arange(30), None).last_layers
    down = "mlp.down_proj.weight"
    taken = [
        torch.equal(layer.state_dict()[down], known[down])
        for layer, known in zip(reversed(layers), reversed(every), strict=False)
    ]
    assert taken == [True] * copied + [False] * (len(layers) - copied)


def test_output_heads_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its output head caps logits") as caught:
        read("gemma2", tmp_path / "capped")
    assert "\n" not in str(caught.value)
    decoder = decoder_of(saved("llama", tmp_path / "plain"), CANNOT)
    _require_plain_head(decoder, "plain")
    biased = replace(decoder, lm_head=replace(decoder.lm_head, bias=np.ones(VOCAB, np.float32)))
    with pytest.raises(ValueError, match="its output head adds a bias to logits"):
        _require_plain_head(biased, "biased")


@pytest.mark.parametrize("family", ["llama", "llama-biased", "qwen2", "qwen3"])
def test_longspec_learns_from_the_keys_and_values_of_the_cache(family: str, tmp_path: Path) -> None:
    model, target = read(family, tmp_path)
    LongspecRecipe(start_from="random").build(target)
    (layer,) = LongspecRecipe().reads(target.layers)
    states, normalizers = states_of(model, TOKENS, (layer, model.layers))
    count, true = len(TOKENS), torch.ones(1, len(TOKENS), dtype=torch.bool)
    rows = PackedRows(
        TOKENS[None],
        torch.zeros(1, count, dtype=torch.long),
        torch.arange(count)[None],
        *(true, true, states[None, :, :1], states[None, :, 1], normalizers[None]),
    )
    found = target_cache(rows, target, layer, rows.positions)
    session = model.start()
    session.extend(TOKENS.tolist(), keep="last")
    with model.pool.lock:
        cached = model.pool.layer_of(session.slot, layer, session.length)
    for own, there in zip(found, cached, strict=True):
        wanted = torch.from_numpy(np.array(there)).float()
        torch.testing.assert_close(own[0], wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("family", "other"),
    [
        ("llama-scaled", "rotary embeddings of another form"),
        ("phi3", "rotary embeddings of another form"),
        ("gemma3", "rotary embeddings of another form"),
        ("cohere", "norms that take off the mean"),
        ("smollm3", "no rotary embedding"),
    ],
)
def test_longspec_refuses_keys_that_it_cannot_make(family: str, other: str, tmp_path: Path) -> None:
    _, target = read(family, tmp_path)
    assert other in target.other_keys
    keys = [other] * len(target.other_keys)
    with pytest.raises(ValueError, match=f"which has {other}; train an EAGLE"):
        LongspecRecipe().build(replace(target, other_keys=keys))
