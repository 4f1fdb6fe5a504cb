"""Settings of GGUF files whose rows go to experts."""

from typing import Any

from draftwood.loading.gguf_metadata import Metadata, UnknownArchitectureError
from draftwood.loading.gguf_settings import experts_used, window_pattern

SIGMOID, OF_CHOSEN = 2, 3
"""llama.cpp's numbers of how experts are weighed: each by itself, or by the softmax of those that
are chosen.
"""


def require_weighing(metadata: Metadata, number: int, how: str) -> None:
    """Raise UnknownArchitectureError where experts are weighed in another way."""
    if metadata.take("expert_gating_func", number) != number:
        raise UnknownArchitectureError(f"its experts are weighed otherwise than {how}")


def require_sigmoids(metadata: Metadata) -> None:
    """Raise UnknownArchitectureError where experts are not weighed each by itself."""
    require_weighing(metadata, SIGMOID, "each by its sigmoid")


def experts(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Mixtures as Qwen has them, in which all layers have experts."""
    return experts_of(metadata)


def experts_of(metadata: Metadata) -> dict[str, Any]:
    """Settings of mixtures of experts as Qwen has them."""
    width = metadata.take("expert_feed_forward_length")
    found = {
        "num_experts_per_tok": experts_used(metadata),
        "num_experts": metadata.need_count("expert_count"),
        "norm_topk_prob": metadata.take("expert_weights_norm", metadata.architecture == "qwen3moe"),
        "moe_intermediate_size": width or metadata.shapes["blk.0.ffn_gate_exps.weight"][1],
    }
    shared = metadata.take("expert_shared_feed_forward_length")
    if metadata.architecture in ("qwen2moe", "qwen35moe", "qwen3next"):
        found["shared_expert_intermediate_size"] = (
            shared or metadata.shapes["blk.0.ffn_gate_shexp.weight"][0]
        )
    return found


def mixtral(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    if not metadata.take("expert_weights_norm", True):
        raise UnknownArchitectureError("its shares of experts do not sum to one, as Mixtral's do")
    return {"model_type": "mixtral"} | local_experts(metadata, common)


def local_experts(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_experts_per_tok": experts_used(metadata),
        "num_local_experts": metadata.need_count("expert_count"),
        "intermediate_size": metadata.take(
            "expert_feed_forward_length", common["intermediate_size"]
        ),
    }


def olmoe(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    found = experts_of(metadata)
    found["intermediate_size"] = found.pop("moe_intermediate_size")
    return found | {"clip_qkv": metadata.take("attention.clamp_kqv") or None}


def gpt_oss(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    require_weighing(metadata, OF_CHOSEN, "by the softmax of those chosen")
    # llama.cpp rounds the bounds between which YaRN stretches, the model's own code does not
    rope = common["rope_parameters"] | {"truncate": False}
    found = {
        "attention_bias": "blk.0.attn_q.bias" in metadata.shapes,
        "sliding_window": metadata.need_count("attention.sliding_window"),
        "rope_parameters": rope if rope["rope_type"] == "yarn" else common["rope_parameters"],
    }
    return found | local_experts(metadata, common) | window_pattern(metadata, common, every=2)


def ernie4_5(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    width, shared = metadata.need_count("expert_feed_forward_length"), shared_count(metadata)
    told = metadata.take("expert_shared_feed_forward_length", shared * width)
    if told != shared * width:
        raise UnknownArchitectureError(
            f"its shared experts are {told} wide, and {shared} experts of {width} by its settings"
        )
    return {
        "moe_k": experts_used(metadata),
        "moe_num_experts": metadata.need_count("expert_count"),
        "moe_num_shared_experts": shared,
        "moe_intermediate_size": width,
        "moe_layer_interval": metadata.need_count("interleave_moe_layer_step"),
        "moe_layer_start_index": dense_layers(metadata),
        "moe_layer_end_index": common["num_hidden_layers"] - 1,
        "use_bias": "blk.0.attn_q.bias" in metadata.shapes,
    }


def glm4moe(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Layers behind the text's predict further tokens (MTP); they are none of these."""
    require_sigmoids(metadata)
    behind = int(metadata.take("nextn_predict_layers", 0))
    layers = common["num_hidden_layers"] - behind
    if not 0 < layers <= common["num_hidden_layers"]:
        raise ValueError(f"{behind} of its {common['num_hidden_layers']} layers foretell tokens")
    return {
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": behind,
        "num_experts_per_tok": experts_used(metadata),
        "n_routed_experts": metadata.need_count("expert_count"),
        "n_shared_experts": shared_count(metadata),
        "moe_intermediate_size": metadata.need_count("expert_feed_forward_length"),
        "first_k_dense_replace": dense_layers(metadata),
        "routed_scaling_factor": float(metadata.take("expert_weights_scale", 1.0)),
        "norm_topk_prob": bool(metadata.take("expert_weights_norm", False)),
        "n_group": int(metadata.take("expert_group_count", 1)) or 1,
        "topk_group": int(metadata.take("expert_group_used_count", 1)) or 1,
        "attention_bias": "blk.0.attn_q.bias" in metadata.shapes,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in metadata.shapes,
    }


def minimax_m2(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    require_sigmoids(metadata)
    return local_experts(metadata, common)


def dense_layers(metadata: Metadata) -> int:
    """Count the layers below all others, which have a network in the place of experts."""
    return _count(metadata, "leading_dense_block_count")


def shared_count(metadata: Metadata) -> int:
    """Count the experts that all rows go to."""
    return _count(metadata, "expert_shared_count")


def _count(metadata: Metadata, key: str) -> int:
    count = metadata.take(key, 0)
    if type(count) is not int or count < 0:
        raise ValueError(f"the setting {metadata.architecture}.{key} is {count}")
    return count
