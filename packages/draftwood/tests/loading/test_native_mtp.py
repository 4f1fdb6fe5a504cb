"""Layers for multi-token prediction beside native models, read from folders of three layouts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from draftwood import methods
from draftwood.engine import Options, generate
from draftwood.loading.native_folders import read_folder
from draftwood.loading.native_mtp import offer
from draftwood.models.native import NativeModel
from draftwood.models.requirements import require_mtp_head
from draftwood.native import library
from draftwood.native.formats import Products
from draftwood.sampling import Sampling
from families import GROUPED, STATEFUL, STATES, random_model, some_tokens
from mtp_folders import BEHIND, MIMO, QWEN, layer_of, told, write

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

PROMPT = some_tokens(12, seed=1)
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS = {
    "mimo": ("Qwen2Config", {"tie_word_embeddings": False}, MIMO),
    "qwen": ("Qwen3Config", {"head_dim": 8}, QWEN),
    "behind": ("LlamaConfig", {}, BEHIND),
    "experts": ("Qwen3MoeConfig", {"head_dim": 8, **EXPERTS}, BEHIND),
    "norms from 1": ("GemmaConfig", {"head_dim": 8}, QWEN),
    "states": ("Qwen3_5TextConfig", STATES, QWEN),
    "states, kinds of layers left out": ("Qwen3_5TextConfig", STATES, QWEN),
    "states, as released": ("Qwen3_5TextConfig", STATES, QWEN),
    "states, experts, as released": (*STATEFUL["qwen3.5-experts"], QWEN),
}

Found = tuple[Path, PreTrainedModel, MtpModel]


@pytest.fixture(scope="module", params=MODELS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A folder, and the model and the layer that were written there, as Transformers has them."""
    folder = tmp_path_factory.mktemp("mtp")
    return folder, *written(folder, request.param)


def written(folder: Path, kind: str) -> tuple[PreTrainedModel, MtpModel]:
    config, settings, names = MODELS[kind]
    model = random_model(config, {**GROUPED, **settings})
    layer = layer_of(model)
    write(folder, model, layer, names)
    more = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]} if kind == "mimo" else {}
    told(folder, num_nextn_predict_layers=1, **more)
    if kind.endswith("left out"):
        told(folder, layer_types=None)
    if kind.endswith("as released"):
        release(folder)
    return model, layer


def release(folder: Path) -> None:
    """Lay a folder out as that of a model with images."""
    path, names = folder / "model.safetensors", folder / "config.json"
    text = json.loads(names.read_text(encoding="utf-8"))
    kind = text["model_type"].removesuffix("_text")
    whole = {"model_type": kind, "text_config": text, "vision_config": {}}
    names.write_text(json.dumps(whole | {"tie_word_embeddings": text["tie_word_embeddings"]}))
    tensors = {
        name.replace("model.", "model.language_model.", 1): each
        for name, each in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})


def opened(folder: Path, products: Products | None = None) -> NativeModel:
    model = NativeModel(read_folder(folder).model, products)
    offer(model, folder)
    return model


@torch.no_grad()
def test_drafts_are_those_of_the_layer_in_pytorch(found: Found) -> None:
    """At the root, and below it, where it reads what it said itself."""
    folder, target, layer = found
    states = target(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1]
    cache, places = MtpCache(config=layer.config), torch.arange(1, len(PROMPT))[None]
    tokens = torch.tensor([PROMPT[1:]])
    said = layer.forward_layer(0, states[:, :-1], places, cache, input_ids=tokens)
    wanted = layer.shared_head(said[0, -1]).numpy()

    model = opened(folder, "float32")
    native = require_mtp_head(model, "a test").native
    assert native is not None
    session = native.start()
    session.take([states[0, :-1].numpy()], PROMPT[1:])
    np.testing.assert_allclose(session.logits()[0], wanted, atol=2e-4, rtol=1e-3)

    best, other = np.argsort(wanted)[:-3:-1].tolist()
    session.level([-1, -1], [best, other])
    tokens = torch.tensor([[best]])
    below = layer.forward_layer(0, said[:, -1:], places[:, -1:] + 1, cache, input_ids=tokens)
    rows = session.logits()
    np.testing.assert_allclose(
        rows[0], layer.shared_head(below[0, -1]).numpy(), atol=2e-4, rtol=1e-3
    )
    assert np.abs(rows[1] - rows[0]).max() > 0.1


@pytest.mark.parametrize("name", ["mtp", "mtp-rsd", "auto"])
def test_texts_with_a_native_layer_are_plain_ones(name: str, found: Found) -> None:
    model = opened(found[0])
    for temperature in (0.0, 1.0) if name != "mtp-rsd" else (0.0,):
        texts = []
        for each in ("plain", name):
            more: dict[str, Any] = {"mtp": model.mtp} if each == "auto" else {}
            method = methods.build(each, model, **more)
            options = Options(Sampling(temperature), 30, seed=2)
            steps = generate(model, method.drafter, method.verifier, PROMPT, options)
            texts.append([token for step in steps for token in step.tokens])
        assert texts[0] == texts[1]


def test_models_without_a_layer_have_no_such_ability(tmp_path: Path) -> None:
    random_model("LlamaConfig", GROUPED).save_pretrained(tmp_path)
    model = opened(tmp_path)
    assert "mtp" not in model.abilities
    with pytest.raises(ValueError, match=r"method 'mtp' needs .* comes with a layer"):
        methods.build("mtp", model)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mtp.norm.weight", None),
        ("mtp.layers.0.mlp.up_proj.weight", None),
        ("mtp.fc.weight", torch.ones(3, 5)),
        ("mtp.pre_fc_norm_hidden.weight", torch.ones(3)),
    ],
)
def test_a_native_layer_that_is_not_whole_names_what_is_wrong(
    name: str, change: torch.Tensor | None, tmp_path: Path
) -> None:
    written(tmp_path, "qwen")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors | ({} if change is None else {name: change}), path, {"format": "pt"})
    model = opened(tmp_path)
    methods.build("plain", model)
    named = name.removesuffix(".weight").rpartition(".")[2]
    with pytest.raises(ValueError, match=rf"{named}.*; choose another method, or fetch"):
        methods.build("mtp", model)
