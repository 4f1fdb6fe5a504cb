"""Settings of GGUF files of hybrid models whose rows go to experts."""

from typing import Any

from draftwood.loading.gguf_hybrids import lfm2, qwen35
from draftwood.loading.gguf_metadata import Metadata
from draftwood.loading.gguf_mixtures import experts_of, experts_used, require_sigmoids


def qwen35moe(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    found = experts_of(metadata)
    del found["norm_topk_prob"]  # they always sum to one
    return qwen35(metadata, common) | found


def lfm2moe(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Shares of experts sum to one, as llama.cpp knows without a setting."""
    require_sigmoids(metadata)
    found = lfm2(metadata, common)
    del found["block_auto_adjust_ff_dim"]
    first = int(metadata.take("leading_dense_block_count", 0))
    return found | {
        "num_dense_layers": first,
        "num_experts_per_tok": experts_used(metadata),
        "num_experts": metadata.need_count("expert_count"),
        "moe_intermediate_size": metadata.need_count("expert_feed_forward_length"),
        "use_expert_bias": f"blk.{first}.exp_probs_b.bias" in metadata.shapes,
        "routed_scaling_factor": float(metadata.take("expert_weights_scale", 1.0)),
        "norm_topk_prob": bool(metadata.take("expert_weights_norm", True)),
    }
