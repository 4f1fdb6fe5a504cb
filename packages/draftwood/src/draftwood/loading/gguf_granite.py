"""GGUF files of Granite, whose mixtures have a network beside the experts, and whose layers may
have running states in the place of attention.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwood.loading.gguf_metadata import Metadata, UnknownArchitectureError
from draftwood.loading.gguf_mixtures import local_experts
from draftwood.loading.gguf_settings import require_layers, rotary_fields

SCALES = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
KEYS = "attention.head_count_kv"
SHARED = "expert_shared_feed_forward_length"
OF_STATES = {
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.group_count": "mamba_n_groups",
    "ssm.state_size": "mamba_d_state",
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.inner_size": "",
}
"""Settings of running states; the last is told by a factor."""
NETWORK_AT = "shared_mlp."


def granite(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp takes a flag of scaled positions for whether there are positions at all."""
    _require_positions(metadata)
    metadata.take(SHARED)  # of experts, which there are none of
    has_bias = _has(metadata, "ffn_up.bias")
    return _scales(metadata, common) | _without_states(metadata) | {"mlp_bias": has_bias}


def mixture(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """All layers have attention and experts; a network beside them makes it another class."""
    _require_positions(metadata)
    found = _scales(metadata, common) | _without_states(metadata)
    found |= local_experts(metadata, common)
    width = metadata.take(SHARED, 0)
    shared = {"model_type": "granitemoeshared", "shared_intermediate_size": width}
    return found | (shared if width else {})


def _require_positions(metadata: Metadata) -> None:
    if not metadata.take("rope.scaling.finetuned", True):
        raise UnknownArchitectureError(
            "its queries and keys have no positions (rope.scaling.finetuned)"
        )


def hybrid(metadata: Metadata) -> dict[str, Any]:
    """Layers without heads of keys have a running state.

    Raises:
        UnknownArchitectureError: for what Transformers' class cannot express.
        ValueError: for what is damaged.
    """
    keys = metadata.values.get(KEYS)
    found = rotary_fields(metadata, "granitemoehybrid")
    layers = found["num_hidden_layers"]
    require_layers(metadata, layers)
    keys = keys if isinstance(keys, list) else [found["num_key_value_heads"]] * layers
    if len(keys) != layers:
        raise ValueError(f"its {KEYS} does not tell of {layers} layers")
    has_positions = metadata.take("rope.scaling.finetuned", True)
    found |= {
        "layer_types": ["attention" if heads else "mamba" for heads in keys],
        "position_embedding_type": "rope" if has_positions else None,
    }
    return found | _scales(metadata, found) | _states(metadata, found) | _experts(metadata, found)


def _scales(metadata: Metadata, common: Mapping[str, Any]) -> dict[str, Any]:
    usual = common["head_dim"] ** -0.5  # what llama.cpp takes where nothing is said
    # 0 is none in llama.cpp, but for logits, where nothing is divided by it
    scales = {
        name: metadata.take(key, 1.0) or float(key != "logit_scale") for key, name in SCALES.items()
    }
    scales["attention_multiplier"] = metadata.take("attention.scale", usual) or usual
    return scales | {"attention_bias": _has(metadata, "attn_q.bias")}


def _has(metadata: Metadata, ending: str) -> bool:
    """True if a layer has a tensor; the first one may be of another kind."""
    return any(name.endswith(f".{ending}") for name in metadata.shapes)


def _without_states(metadata: Metadata) -> dict[str, Any]:
    """Take what converters tell of states also for models of Granite 4 that have none."""
    for key in OF_STATES:
        metadata.take(key)
    return {}


def _states(metadata: Metadata, common: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: metadata.need_count(key) for key, name in OF_STATES.items()}
    width, hidden = told.pop(""), common["hidden_size"]
    factor, rest = divmod(width, hidden)
    if rest:
        raise UnknownArchitectureError(f"its states have {width} entries, and its rows {hidden}")
    return told | {
        "mamba_expand": factor,
        "mamba_d_head": width // told["mamba_n_heads"],
        "mamba_conv_bias": _has(metadata, "ssm_conv1d.bias"),
    }


def _experts(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Without experts, the network beside them stands alone and is as wide as others'."""
    if metadata.values.get("expert_count"):
        return local_experts(metadata, common) | {
            "shared_intermediate_size": metadata.take(SHARED, 0)
        }
    metadata.take(SHARED)
    return {"num_local_experts": 0, "shared_intermediate_size": common["intermediate_size"]}


def joined_networks(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Networks beside experts as Transformers saves them: gates, and below them what they gate."""
    found = dict[str, np.ndarray]()
    for name, values in tensors.items():
        at, _, part = name.rpartition(NETWORK_AT)
        if part == "gate_proj.weight":
            parts = values, tensors[f"{at}{NETWORK_AT}up_proj.weight"]
            found[f"{at}{NETWORK_AT}input_linear.weight"] = np.concatenate(parts)
        elif part != "up_proj.weight":
            found[name.replace(".router.", ".router.layer.")] = values
    return found
