"""Defaults of newer classes of configurations; imported where a configuration is of one."""

from typing import Any

from draftwood.models.configuration_class import (
    FULL,
    ConfigurationClass,
    convolutions_but_told,
    states_but_every,
    values_of,
    windows_but_every,
    without_network,
)

_STATES: dict[str, Any] = {
    **{"attention_bias": False, "layer_types": None, "head_dim": 256, "linear_conv_kernel_dim": 4},
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32},
}
_GELU = "gelu_pytorch_tanh"
_GEMMA4: dict[str, Any] = {
    **{"attention_bias": False, "head_dim": 256, "sliding_window": 512, "layer_types": None},
    **{"global_head_dim": 512, "num_global_key_value_heads": None, "per_layer_config": None},
    **{"attention_k_eq_v": False, "num_kv_shared_layers": 0, "use_double_wide_mlp": False},
    **{"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256},
    **{"final_logit_softcapping": None, "use_bidirectional_attention": None},
    **{"enable_moe_block": False, "num_experts": None, "top_k_experts": None},
    "moe_intermediate_size": None,
}
_GEMMA4_ROTARY = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {
        **{"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0}
    },
}
_SHARED = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}


def _all_layers(config: Any) -> None:
    """Experts up to the last layer, where no other is told."""
    if config.moe_layer_end_index == -1:
        config.moe_layer_end_index = config.num_hidden_layers - 1


def _own_experts(config: Any) -> None:
    """Experts only where they are asked for, and a last layer that sees all."""
    config.num_experts = config.num_experts if config.enable_moe_block else None
    config.num_experts_per_tok = config.top_k_experts
    config.layer_types = [*(config.layer_types or [])[:-1], FULL]


def _even_heads(config: Any) -> None:
    """Heads of states that have as many entries each."""
    if config.mamba_d_head == "auto":
        config.mamba_d_head = int(config.mamba_expand * config.hidden_size) // config.mamba_n_heads


def _attention_in(config: Any) -> list[str]:
    """Attention in the layers that are named, running states in the others."""
    named = config.attn_layer_indices or ()
    layers = range(config.num_hidden_layers)
    return [FULL if layer in named else "linear_attention" for layer in layers]


_SPACE: dict[str, Any] = {
    **{"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto"},
    **{"mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False},
    "time_step_limit": (0.0, float("inf")),
}
_GRANITE: dict[str, Any] = {
    **dict.fromkeys(("embedding_multiplier", "logits_scaling"), 1.0),
    **dict.fromkeys(("residual_multiplier", "attention_multiplier"), 1.0),
    **{"attention_bias": False, "num_local_experts": 8, "num_experts_per_tok": 2},
}
_GRANITE_SIZES = (32000, 4096, 11008, 32, 32, 2048)
NEWER = {
    "arcee": ConfigurationClass(
        "ArceeForCausalLM",
        values_of((32000, 2560, 18432, 32, 32, 4096), attention_bias=False, mlp_bias=False)
        | {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "head_dim": None},
    ),
    "nemotron": ConfigurationClass(
        "NemotronForCausalLM",
        values_of((256000, 6144, 24576, 32, 48, 4096), attention_bias=False, norm_eps=1e-5)
        | {"hidden_act": "relu2", "mlp_bias": False, "head_dim": None},
        partial=0.5,
    ),
    "starcoder2": ConfigurationClass(
        "Starcoder2ForCausalLM",
        values_of((49152, 3072, 12288, 30, 24, 4096), use_bias=True, norm_epsilon=1e-5)
        | {"hidden_act": _GELU, "sliding_window": None, "tie_word_embeddings": True}
        | {"num_key_value_heads": 2},
        makes_windows=True,
    ),
    "granitemoe": ConfigurationClass(
        "GraniteMoeForCausalLM", values_of(_GRANITE_SIZES, **_GRANITE)
    ),
    "granitemoeshared": ConfigurationClass(
        "GraniteMoeSharedForCausalLM",
        values_of(_GRANITE_SIZES, **_GRANITE, shared_intermediate_size=0),
    ),
    "granitemoehybrid": ConfigurationClass(
        "GraniteMoeHybridForCausalLM",
        values_of(_GRANITE_SIZES, **_GRANITE, **_SPACE, layer_types=None)
        | {"shared_intermediate_size": 1024, "position_embedding_type": None},
        layer_types=lambda config: ["linear_attention"] * config.num_hidden_layers,
        older={"layers_block_type": "layer_types"},
        complete=_even_heads,
    ),
    "bamba": ConfigurationClass(
        "BambaForCausalLM",
        values_of((128000, 4096, 14336, 32, 32, 262144), **_SPACE, attention_bias=False)
        | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "mlp_bias": False}
        | {"attn_layer_indices": None, "layer_types": None},
        partial=0.5,
        layer_types=_attention_in,
        complete=_even_heads,
    ),
    "qwen3_5_text": ConfigurationClass(
        "Qwen3_5ForCausalLM",
        values_of((248320, 4096, 12288, 32, 16, 32768), **_STATES) | {"num_key_value_heads": 4},
        partial=0.25,
        layer_types=states_but_every,
    ),
    "qwen3_5": ConfigurationClass("Qwen3_5ForConditionalGeneration", part="qwen3_5_text"),
    "qwen3_5_moe_text": ConfigurationClass(
        "Qwen3_5MoeForCausalLM",
        without_network(
            values_of((248320, 2048, 0, 40, 16, 32768), **_STATES, **_SHARED, num_experts=256)
        )
        | {"num_key_value_heads": 2, "num_experts_per_tok": 8},
        partial=0.25,
        layer_types=states_but_every,
    ),
    "qwen3_5_moe": ConfigurationClass(
        "Qwen3_5MoeForConditionalGeneration", part="qwen3_5_moe_text"
    ),
    "qwen3_next": ConfigurationClass(
        "Qwen3NextForCausalLM",
        values_of((151936, 2048, 5632, 48, 16, 32768), **_STATES, **_SHARED, num_experts=512)
        | {"num_key_value_heads": 2, "num_experts_per_tok": 10, "norm_topk_prob": True}
        | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        partial=0.25,
        layer_types=states_but_every,
    ),
    "lfm2": ConfigurationClass(
        "Lfm2ForCausalLM",
        {
            **{"vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288},
            **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
            **{"max_position_embeddings": 128_000, "norm_eps": 1e-5, "tie_word_embeddings": True},
            **{"rope_parameters": None, "layer_types": None, "conv_bias": False},
            **{"conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0},
            **{"block_auto_adjust_ff_dim": True},
        },
        theta=1_000_000.0,
        layer_types=convolutions_but_told,
        older={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    ),
    "lfm2_moe": ConfigurationClass(
        "Lfm2MoeForCausalLM",
        {
            **{"vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168},
            **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
            **{"max_position_embeddings": 128_000, "norm_eps": 1e-5, "tie_word_embeddings": True},
            **{"rope_parameters": None, "layer_types": None, "conv_bias": False},
            **{"conv_L_cache": 3, "num_dense_layers": 2, "num_experts": 32},
            **{"num_experts_per_tok": 4, "moe_intermediate_size": 1792, "norm_topk_prob": True},
            **{"use_expert_bias": True, "routed_scaling_factor": 1.0},
        },
        theta=1_000_000.0,
        older={"tie_embedding": "tie_word_embeddings"},
    ),
    "glm4_moe": ConfigurationClass(
        "Glm4MoeForCausalLM",
        values_of((151552, 4096, 10944, 46, 96, 131072), attention_bias=False, use_qk_norm=False)
        | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "moe_intermediate_size": 1408}
        | {"num_experts_per_tok": 8, "num_local_experts": 128, "n_shared_experts": 1}
        | {"routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True}
        | {"first_k_dense_replace": 1},
        partial=0.5,
        older={"n_routed_experts": "num_local_experts"},
    ),
    "ernie4_5_moe": ConfigurationClass(
        "Ernie4_5_MoeForCausalLM",
        values_of((103424, 2560, 12288, 28, 20, 131072), use_bias=False)
        | {"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
        | {"moe_intermediate_size": 1536, "num_experts_per_tok": 6, "num_experts": 64}
        | {"moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": -1}
        | {"moe_layer_interval": 1, "moe_norm_min": 1e-12},
        theta=500_000.0,
        older={"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"},
        complete=_all_layers,
    ),
    "minimax_m2": ConfigurationClass(
        "MiniMaxM2ForCausalLM",
        values_of((200064, 3072, 1536, 62, 48, 196608), head_dim=128, rotary_dim=None)
        | {"num_key_value_heads": 8, "num_experts_per_tok": 8, "num_local_experts": 256},
        theta=5_000_000.0,
    ),
    "olmo3": ConfigurationClass(
        "Olmo3ForCausalLM",
        values_of((50304, 4096, 11008, 32, 32, 2048), attention_bias=False, sliding_window=4096)
        | {"rms_norm_eps": 1e-5, "layer_types": None},
        theta=500_000.0,
        local_theta=500_000.0,
        layer_types=windows_but_every(4),
        makes_windows=True,
    ),
    "gemma4_text": ConfigurationClass(
        "Gemma4ForCausalLM",
        values_of((262144, 2304, 9216, 30, 8, 131072), **_GEMMA4, hidden_activation=_GELU)
        | {"num_key_value_heads": 4, "tie_word_embeddings": True}
        | {"rope_parameters": _GEMMA4_ROTARY},
        theta=1_000_000.0,
        local_theta=10_000.0,
        layer_types=windows_but_every(6),
        makes_windows=True,
        complete=_own_experts,
    ),
    "gemma4": ConfigurationClass("Gemma4ForConditionalGeneration", part="gemma4_text"),
}
"""By Transformers' ``model_type``."""
