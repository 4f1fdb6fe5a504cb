"""Tiny state-space and hybrid models, and what they themselves say, token by token."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from draftwood.tree import DraftTree
from draftwood_torch.recurrences.hybrid import HybridModel
from families import GROUPED, SIZES, VOCAB, leaf_paths, random_model

SSD = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
THREE_TO_ONE = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
DELTA = {
    **GROUPED,
    "head_dim": 8,
    "layer_types": THREE_TO_ONE,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

HYBRIDS: dict[str, tuple[str, dict[str, object]]] = {
    "lfm2": (
        "Lfm2Config",
        {
            **GROUPED,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "conv_L_cache": 3,
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2-moe": (
        "Lfm2MoeConfig",
        {
            **GROUPED,
            **EXPERTS,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "conv_L_cache": 3,
            "conv_bias": True,
            "num_dense_layers": 1,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 8,
            "expand": 2,
            "chunk_size": 16,
            "use_bias": True,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    "bamba": ("BambaConfig", {**GROUPED, **SSD, "attn_layer_indices": [2]}),
    "zamba2": (
        "Zamba2Config",
        {
            **SIZES,
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_ngroups": 2,
            "n_mamba_heads": 4,
            "num_mem_blocks": 2,
            "num_hidden_layers": 6,
            "layers_block_type": ["linear_attention", "hybrid"] * 3,
            "use_mem_rope": True,
            "use_shared_attention_adapter": True,
            "adapter_rank": 4,
            "time_step_min": 0.6,  # many steps are below
        },
    ),
    "falcon-h1": (
        "FalconH1Config",
        {
            **GROUPED,
            **SSD,
            "mamba_d_ssm": 64,
            "ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 1.2],
            "mlp_multipliers": [0.8, 1.2],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.7,
            "attention_in_multiplier": 0.9,
            "attention_out_multiplier": 1.2,
            "key_multiplier": 0.8,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.5,
        },
    ),
    "falcon-h1-normed": (
        "FalconH1Config",
        {**GROUPED, **SSD, "mamba_d_ssm": 64, "mamba_rms_norm": True},
    ),
    "granite-hybrid": (
        "GraniteMoeHybridConfig",
        {
            **GROUPED,
            **SSD,
            "layer_types": THREE_TO_ONE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 24,
            "logits_scaling": 4.0,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
            "position_embedding_type": "rope",
        },
    ),
    "nemotron-h": (
        "NemotronHConfig",
        {
            **{name: size for name, size in GROUPED.items() if name != "num_hidden_layers"},
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"] * 2,
            "head_dim": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 2,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
            "time_step_min": 0.6,
        },
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "qwen3.5": ("Qwen3_5TextConfig", DELTA),
    "qwen3.5-moe": (
        "Qwen3_5MoeTextConfig",
        {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    ),
}


@cache
def hf_model(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    name, options = HYBRIDS[family]
    # wilder weights would make differences in rounding grow from layer to layer
    model = random_model(name, {**options, "initializer_range": 0.1})
    if dtype is torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the others do not know this type
    return model.to(dtype)


def model_of(family: str, dtype: torch.dtype = torch.float32) -> HybridModel:
    return HybridModel(hf_model(family, dtype))


@contextmanager
def widened() -> Iterator[None]:
    """Transformers computes some parts in float32, whatever the type of the model: in float64
    here.
    """
    with (
        patch.object(torch, "float32", torch.float64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


@torch.no_grad()
def stepped(
    model: PreTrainedModel, prompt: Sequence[int], texts: Sequence[Sequence[int]]
) -> Tensor:
    """The model's own logits [texts tokens vocab] at every token of texts of one length after a
    prompt, run token by token.
    """
    kept = DynamicCache(config=model.config)
    named = "cache_params" if model.config.model_type == "mamba2" else "past_key_values"
    given: dict[str, object] = {"use_cache": True, named: kept}
    model(torch.tensor([list(prompt)] * len(texts)), **given)
    rows = [
        model(
            tokens[:, None],
            position_ids=torch.full((len(texts), 1), len(prompt) + place),
            **given,
        ).logits[:, -1]
        for place, tokens in enumerate(torch.tensor([list(text) for text in texts]).T)
    ]
    return torch.stack(rows, dim=1)


def at_nodes(
    model: PreTrainedModel, prompt: Sequence[int], since: Sequence[int], tree: DraftTree
) -> Tensor:
    """The model's own logits at every node after a prompt and tokens since, token by token."""
    paths = leaf_paths(tree)
    longest = max(map(len, paths))
    texts = [
        [*since, *(tree.token_list[node] for node in path), *[0] * (longest - len(path))]
        for path in paths
    ]
    found: dict[int, Tensor] = {}
    for path, logits in zip(paths, stepped(model, prompt, texts), strict=True):
        found |= zip(path, logits[len(since) :], strict=False)
    return torch.stack([found[node] for node in range(len(tree))])
