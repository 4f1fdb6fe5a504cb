"""Folders of published layouts are read as the decoders that they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from draftwood import RowsInput
from draftwood.loading.native_folders import read_folder, why_not
from draftwood.models.native import NativeModel
from draftwood_diffusion.layouts import LAYOUTS
from draftwood_diffusion.masked_model import DiffusionSettings
from draftwood_diffusion.settings import KEY, require_settings, settings_in, settings_of

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
LAYER_OF_LLADA = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}


def as_llada(name: str) -> str:
    """LLaDA's name of a Llama's tensor."""
    for theirs, ours in LAYER_OF_LLADA.items():
        name = name.replace(f".{theirs}.", f".{ours}.")
    for theirs, ours in {
        "model.embed_tokens": "model.transformer.wte",
        "model.norm": "model.transformer.ln_f",
        "lm_head": "model.transformer.ff_out",
        "model.layers": "model.transformer.blocks",
    }.items():
        name = name.replace(theirs, ours)
    return name


def settings_of_llada(model: Any) -> dict[str, Any]:
    return {
        "model_type": "llada",
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "mlp_hidden_size": 64,
        "max_sequence_length": 64,
        "vocab_size": 40,
        "embedding_size": 48,
        "weight_tying": False,
        "activation_type": "silu",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "alibi": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "rope_theta": 5000.0,
        "rms_norm_eps": 1e-5,
        "mask_token_id": 40,
    }


def settings_of_others(kind: str) -> Callable[[Any], dict[str, Any]]:
    def settings(model: Any) -> dict[str, Any]:
        told = json.loads(model.config.to_json_string())
        told = {name: each for name, each in told.items() if name != "rope_parameters"}
        return {
            **told,
            "model_type": kind,
            "rope_theta": 5000.0,
            "auto_map": {"AutoModel": "code.X"},
        }

    return settings


def write_layout(folder: Path, kind: str) -> Any:
    """A tiny random folder of a layout; gives the model of Transformers with its weights."""
    config_class, model_class = CLASSES[LAYOUTS[kind].decoder]
    more = {"head_dim": 16} if LAYOUTS[kind].decoder == "qwen3" else {}
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = model_class(config_class(**SIZES, **more, rope_parameters=rope)).eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.3)
    is_llada = kind == "llada"
    told = settings_of_llada(model) if is_llada else settings_of_others(kind)(model)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "code.py").write_text("raise SystemExit('code from a folder ran')")
    tensors = {
        as_llada(name) if is_llada else name: each.contiguous()
        for name, each in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model


def mask_of(settings: DiffusionSettings, count: int) -> np.ndarray:
    """The mask of so many places of a text, written out."""
    if settings.bidirectional:
        return np.ones((count, count), bool)
    blocks = np.arange(count) // 4
    return blocks[:, None] >= blocks


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
def test_logits_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = write_layout(tmp_path / kind, kind)
    settings = settings_of(tmp_path / kind)
    assert settings is not None
    tokens = [3, 7, 1, 40, 40, 9, 40, 2, 5, 40]
    seen = mask_of(settings, len(tokens))
    native = NativeModel(read_folder(tmp_path / kind, "float32").model)
    session = native.start()
    found = native.forward([RowsInput(session, tokens, np.arange(len(tokens)), seen)])[0].logits
    added = torch.zeros(1, 1, len(tokens), len(tokens)).masked_fill(
        ~torch.from_numpy(seen), torch.finfo(torch.float32).min
    )
    with torch.no_grad():
        wanted = model(torch.tensor([tokens]), attention_mask=added).logits[0]
        causal = model(torch.tensor([tokens])).logits[0]
    np.testing.assert_allclose(np.asarray(found), wanted.numpy(), atol=1e-4)
    assert np.abs(np.asarray(found) - causal.numpy()).max() > 0.1  # the mask matters


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("llada", DiffusionSettings(40, 32, False, True)),
        ("Dream", DiffusionSettings(151666, 32, True, True)),
        ("sdar", DiffusionSettings(151669, 4, False, False)),
        ("Fast_dLLM_Qwen", DiffusionSettings(151665, 32, True, False)),
    ],
)
def test_settings_of_layouts(kind: str, wanted: DiffusionSettings, tmp_path: Path) -> None:
    write_layout(tmp_path / kind, kind)
    assert settings_of(tmp_path / kind) == wanted


def test_settings_in_a_config_go_before_those_of_the_authors() -> None:
    assert settings_in({"model_type": "sdar", "block_size": 8, "mask_token_id": 7}) == (
        DiffusionSettings(7, 8)
    )
    told = {"model_type": "llama", KEY: {"mask_token": 3, "block_length": 2, "shifted": True}}
    assert settings_in(told) == DiffusionSettings(3, 2, shifted=True)


def test_a_model_without_a_mask_is_named_with_the_cure() -> None:
    assert settings_in({"model_type": "llama"}) is None
    with pytest.raises(ValueError, match=r"smollm2-135m writes from left to right.*--mask-token"):
        require_settings("smollm2-135m", None, {})
    assert require_settings("x", None, {"mask_token": 4, "block_length": 8}) == DiffusionSettings(
        4, 8
    )
    own = DiffusionSettings(4, 16, shifted=True)
    assert require_settings("x", own, {"block_length": 8}) == DiffusionSettings(4, 8, shifted=True)
    assert not require_settings("x", own, {"shifted": 0}).shifted
    assert require_settings("x", own, {"shifted": None}).shifted
    with pytest.raises(ValueError, match="convert the model again"):
        settings_in({KEY: {"mask": 3}})


def test_another_shape_of_llada_is_refused(tmp_path: Path) -> None:
    write_layout(tmp_path / "llada", "llada")
    path = tmp_path / "llada" / "config.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "alibi": True}))
    with pytest.raises(ValueError, match=r"alibi False, this config\.json has True"):
        read_folder(tmp_path / "llada")
    strange = {"num_experts": 64, "input_emb_norm": True, "scale_logits": True, "clip_qkv": 8.0}
    for name, value in strange.items():
        path.write_text(json.dumps({**told, name: value}))
        with pytest.raises(ValueError, match=rf"{name} \w+, this config\.json has {value}"):
            read_folder(tmp_path / "llada")
    path.write_text(json.dumps({**told, "n_layers": 3}))
    with pytest.raises(ValueError, match=r"lacks 9 weights.*layers\.2\."):
        read_folder(tmp_path / "llada", "float32")
    path.write_text(json.dumps(told))
    assert why_not(tmp_path / "llada") is None
