"""GGUF files of hybrid models whose rows go to experts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwood.loading.gguf_hybrids import lfm2, qwen35
from draftwood.loading.gguf_metadata import Metadata
from draftwood.loading.gguf_mixtures import (
    dense_layers,
    experts_of,
    experts_used,
    require_sigmoids,
)


def qwen35moe(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    found = experts_of(metadata)
    del found["norm_topk_prob"]  # they always sum to one
    return qwen35(metadata, common) | found


def qwen3next(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Shares of experts sum to one and all layers have experts, as llama.cpp knows without
    settings.
    """
    always = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return qwen35(metadata, common) | experts_of(metadata) | always


def lfm2moe(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Shares of experts sum to one, as llama.cpp knows without a setting."""
    require_sigmoids(metadata)
    found, first = lfm2(metadata, common), dense_layers(metadata)
    del found["block_auto_adjust_ff_dim"]
    return found | {
        "num_dense_layers": first,
        "num_experts_per_tok": experts_used(metadata),
        "num_experts": metadata.need_count("expert_count"),
        "moe_intermediate_size": metadata.need_count("expert_feed_forward_length"),
        "use_expert_bias": f"blk.{first}.exp_probs_b.bias" in metadata.shapes,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    }


def joined_states(tensors: Mapping[str, np.ndarray], keys: int) -> dict[str, np.ndarray]:
    """Tensors of Qwen3-Next as Transformers saves them: all that a head of keys and its heads of
    values are fed lies below each other, in one tensor; rates and steps likewise.

    Args:
        keys: heads of keys.
    """
    found = dict[str, np.ndarray]()
    for name, values in tensors.items():
        at, _, part = name.rpartition("in_proj_")
        if not at:
            found[name] = values
        elif part == "qkv.weight":
            gate = tensors[f"{at}in_proj_z.weight"]
            ends = (len(values) - len(gate)) // 2
            parts = [*np.split(values, [ends, 2 * ends]), gate]
            found[f"{at}in_proj_qkvz.weight"] = _by_keys(parts, keys)
        elif part == "b.weight":
            parts = [values, tensors[f"{at}in_proj_a.weight"]]
            found[f"{at}in_proj_ba.weight"] = _by_keys(parts, keys)
    return found


def _by_keys(parts: Sequence[np.ndarray], keys: int) -> np.ndarray:
    width = parts[0].shape[-1]
    heads = [part.reshape(keys, -1, width) for part in parts]
    return np.concatenate(heads, axis=1).reshape(-1, width)
