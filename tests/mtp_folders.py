"""Folders of small models that come with a layer for multi-token prediction, written by layout."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from families import random_model
from gguf_writing import laid_out
from hybrids import GROUPED, HYBRIDS

QWEN = {
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "eh_proj": "mtp.fc",
    "post_norm": "mtp.norm",
    "mtp_block": "mtp.layers.0",
}
BEHIND = {
    **{name: f"model.layers.{{behind}}.{name}" for name in ("enorm", "hnorm", "eh_proj")},
    "post_norm": "model.layers.{behind}.shared_head.norm",
    "mtp_block": "model.layers.{behind}",
}
MIMO = {
    "enorm": "model.mtp_layers.0.token_layernorm",
    "hnorm": "model.mtp_layers.0.hidden_layernorm",
    "eh_proj": "model.mtp_layers.0.input_proj",
    "post_norm": "model.mtp_layers.0.final_layernorm",
    "mtp_block": "model.mtp_layers.0",
}
MIXED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    **{"v_head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 4},
    **{"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}


def ending_in_attention(family: str) -> tuple[str, dict[str, Any]]:
    """A hybrid's configuration, with attention in the last layer as published ones have it."""
    name, settings = HYBRIDS[family]
    return name, {**settings, "layer_types": ["linear_attention", "full_attention"] * 2}


MODELS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "qwen3.5": (*ending_in_attention("qwen3.5"), QWEN),
    "qwen3.5-moe": (*ending_in_attention("qwen3.5-moe"), QWEN),
    "qwen3-next": (*ending_in_attention("qwen3-next"), QWEN),
    "glm-4.5": (
        "Glm4MoeConfig",
        {**GROUPED, **MIXED, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
        BEHIND,
    ),
    "deepseek-v3": ("DeepseekV3Config", {**GROUPED, **LATENT, **MIXED}, BEHIND),
}
"""By family: its configuration and the names of the layer's tensors."""


def layer_of(model: PreTrainedModel, seed: int = 0) -> MtpModel:
    """A layer of random weights, as Transformers has it; sure of what it says."""
    double: Any = copy.copy(model)
    double.config = copy.deepcopy(model.config)
    double.config.num_mtp_layers = 1
    for kinds in ("layer_types", "mlp_layer_types"):
        if named := getattr(double.config, kinds, None):
            setattr(
                double.config,
                f"mtp_{kinds}",
                ["full_attention" if "mlp" not in kinds else named[-1]],
            )
    torch.manual_seed(seed)
    layer = MtpModel(double, 1).eval().requires_grad_(False)
    for weight in layer.layers.parameters():
        weight.normal_(0.0, 0.3 if weight.ndim > 1 else 0.1)
        if weight.ndim == 1 and model.config.model_type in ("qwen2", "glm4_moe", "deepseek_v3"):
            weight.add_(1.0)  # of the others a norm's weight is what is added to 1
    return layer


def write(folder: Path, model: PreTrainedModel, layer: MtpModel, names: dict[str, str]) -> None:
    """Write a model with a layer beside it, whose tensors have names of a layout."""
    model.save_pretrained(folder)
    path, behind = folder / "model.safetensors", model.config.num_hidden_layers
    tensors = load_file(path)
    for name, weight in layer.layers[0].state_dict().items():
        part, _, rest = name.partition(".")
        own = weight
        if part == "eh_proj" and names is MIMO:
            half = weight.shape[1] // 2
            own = torch.cat([weight[:, half:], weight[:, :half]], dim=1)
        tensors[f"{names[part].format(behind=behind)}.{rest}"] = own.clone()
    save_file(tensors, path, {"format": "pt"})


def written(folder: Path, family: str) -> tuple[PreTrainedModel, MtpModel]:
    """A model of a family in a folder; with its layer."""
    config, settings, names = MODELS[family]
    model = random_model(config, settings)
    layer = layer_of(model)
    write(folder, model, layer, names)
    return model, layer


def told(folder: Path, **changes: object) -> None:
    """Change a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes))


def in_file(model: PreTrainedModel, layer: MtpModel, architecture: str) -> dict[str, np.ndarray]:
    """A layer's tensors in a GGUF file: a further block, and what is around it."""
    behind = f"blk.{model.config.num_hidden_layers}."
    around = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm"}
    around["post_norm"] = "shared_head_norm"
    found, like = {}, model.config.num_hidden_layers - 1
    state = layer.layers[0].state_dict()
    block = {
        f"model.layers.{like}.{name.removeprefix('mtp_block.')}": each
        for name, each in state.items()
        if name.startswith("mtp_block.")
    }
    for name, values in laid_out(block, architecture, model.config).items():
        found[behind + name.partition(f"blk.{like}.")[2]] = values
    for own, theirs in around.items():
        values = state[f"{own}.weight"].numpy()
        found[f"{behind}nextn.{theirs}.weight"] = values + (own != "eh_proj")
    return found
