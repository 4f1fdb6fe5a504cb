"""GGUF files of hybrid models whose rows go to experts."""

from collections.abc import Mapping
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
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.recurrent_layers import state_parts

JOINED = {"qkv.weight": "in_proj_qkvz", "b.weight": "in_proj_ba"}
"""Modules that Transformers has joined, by the first of their parts."""


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


def joined_states(
    tensors: Mapping[str, np.ndarray], config: ModelConfiguration
) -> dict[str, np.ndarray]:
    """Tensors of Qwen3-Next as Transformers saves them: see ``state_parts``."""
    found = dict(tensors)
    for name in tensors:
        at, _, part = name.rpartition("in_proj_")
        if not at or part not in JOINED:
            continue
        module = f"{at}{JOINED[part]}"
        rows = state_parts(module, config)
        values = np.concatenate([found.pop(f"{each}.weight") for each in rows])
        found[f"{module}.weight"] = values[np.concatenate([*rows.values()]).argsort()]
    return found
