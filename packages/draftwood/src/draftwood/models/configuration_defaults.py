"""Defaults of the classes of configurations of Transformers, for what a config.json leaves out."""

from typing import Any

from draftwood.models.configuration_class import (
    ConfigurationClass,
    alternating_windows,
    early_windows,
    late_windows,
    values_of,
    windows_but_every,
    windows_without_rotary,
)

_WINDOWS: dict[str, Any] = {"sliding_window": 4096, "use_sliding_window": False}
_BIASES: dict[str, Any] = {"attention_bias": False}
_QWEN = {**_WINDOWS, "max_window_layers": 28, "layer_types": None, "num_key_value_heads": 32}
_GEMMA = {**_BIASES, "tie_word_embeddings": True, "use_bidirectional_attention": None}
_CAPS = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
_GEMMA2 = {
    **_GEMMA,
    **{"num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh"},
    **{"query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": None},
}
_COHERE = {**_BIASES, "logit_scale": 0.0625, "layer_norm_eps": 1e-5, "tie_word_embeddings": True}
_GPT_OSS_ROTARY = {
    **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"truncate": False, "original_max_position_embeddings": 4096},
}
_WIDE: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128}
_MINISTRAL3_ROTARY = {
    **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "mscale": 1.0},
    **{"original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "type": "yarn"},
    **{"max_position_embeddings": 262144},
}

CLASSES: dict[str, ConfigurationClass] = {
    "llama": ConfigurationClass(
        "LlamaForCausalLM",
        values_of((32000, 4096, 11008, 32, 32, 2048), **_BIASES, mlp_bias=False, head_dim=None),
    ),
    "mistral": ConfigurationClass(
        "MistralForCausalLM",
        values_of(
            (32000, 4096, 14336, 32, 32, 131072),
            num_key_value_heads=8,
            head_dim=None,
            sliding_window=4096,
            layer_types=None,  # with them Transformers takes its class Ministral
        ),
        makes_windows=True,
    ),
    "ministral3": ConfigurationClass(
        "Ministral3ForCausalLM",
        values_of(
            (131072, 4096, 14336, 34, 32, 262144),
            **{**_WIDE, "rms_norm_eps": 1e-5, "sliding_window": None},
        )
        | {"rope_parameters": _MINISTRAL3_ROTARY},
        theta=1_000_000.0,
        makes_windows=True,
    ),
    "mistral3": ConfigurationClass(
        "Mistral3ForConditionalGeneration", part="ministral3", usual_part="mistral"
    ),
    "seed_oss": ConfigurationClass(
        "SeedOssForCausalLM",
        values_of(
            (155136, 4096, 27648, 64, 80, 524288),
            **{"attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
            **_WIDE,
        ),
    ),
    "ernie4_5": ConfigurationClass(
        "Ernie4_5ForCausalLM",
        values_of(
            (103424, 1024, 3072, 18, 16, 131072),
            **{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5},
            **{"use_bias": False, "tie_word_embeddings": True},
        ),
        theta=500_000.0,
    ),
    "exaone4": ConfigurationClass(
        "Exaone4ForCausalLM",
        values_of(
            (102400, 4096, 16384, 32, 32, 2048),
            **{"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "layer_types": None},
            **{"sliding_window": 4096, "sliding_window_pattern": 4},
        ),
        layer_types=windows_but_every(4),
        makes_windows=True,
    ),
    "glm4": ConfigurationClass(
        "Glm4ForCausalLM",
        values_of(
            (151552, 4096, 13696, 40, 32, 131072),
            **{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07},
            attention_bias=True,
        ),
        partial=0.5,
    ),
    "qwen2": ConfigurationClass(
        "Qwen2ForCausalLM",
        values_of((151936, 4096, 22016, 32, 32, 32768), **_QWEN),
        layer_types=late_windows,
        makes_windows=True,
    ),
    "qwen3": ConfigurationClass(
        "Qwen3ForCausalLM",
        values_of((151936, 4096, 22016, 32, 32, 32768), **_QWEN, **_BIASES, head_dim=128),
        layer_types=late_windows,
        makes_windows=True,
    ),
    "stablelm": ConfigurationClass(
        "StableLmForCausalLM",
        values_of(
            (50304, 2560, 6912, 32, 32, 4096),
            num_key_value_heads=32,
            layer_norm_eps=1e-5,
            use_qkv_bias=False,
            qk_layernorm=False,
            use_parallel_residual=False,
        ),
        partial=0.25,
    ),
    "gemma": ConfigurationClass(
        "GemmaForCausalLM",
        values_of(
            (256000, 3072, 24576, 28, 16, 8192),
            **_GEMMA,
            num_key_value_heads=16,
            head_dim=256,
        )
        | {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma2": ConfigurationClass(
        "Gemma2ForCausalLM",
        values_of((256000, 2304, 9216, 26, 8, 8192), **_GEMMA2, **_CAPS),
        layer_types=alternating_windows,
        makes_windows=True,
    ),
    "gemma3_text": ConfigurationClass(
        "Gemma3ForCausalLM",
        values_of((262208, 2304, 9216, 26, 8, 131072), **_GEMMA2, **dict.fromkeys(_CAPS))
        | {"use_bidirectional_attention": False},
        theta=1_000_000.0,
        local_theta=10_000.0,
        layer_types=windows_but_every(6),
        makes_windows=True,
    ),
    "gemma3": ConfigurationClass("Gemma3ForConditionalGeneration", part="gemma3_text"),
    "phi3": ConfigurationClass(
        "Phi3ForCausalLM",
        values_of(
            (32064, 3072, 8192, 32, 32, 4096),
            rms_norm_eps=1e-5,
            sliding_window=None,
            original_max_position_embeddings=4096,
        ),
        partial=1.0,
        makes_windows=True,
    ),
    "smollm3": ConfigurationClass(
        "SmolLM3ForCausalLM",
        values_of(
            (128256, 2048, 11008, 36, 16, 32768),
            num_key_value_heads=4,
            use_sliding_window=False,
            sliding_window=None,
            no_rope_layers=None,
            no_rope_layer_interval=4,
            layer_types=None,
            attention_bias=False,
            mlp_bias=False,
            tie_word_embeddings=True,
        ),
        theta=2_000_000.0,
        layer_types=windows_without_rotary,
        makes_windows=True,
    ),
    "olmo2": ConfigurationClass(
        "Olmo2ForCausalLM",
        values_of((50304, 4096, 11008, 32, 32, 2048), **_BIASES, rms_norm_eps=1e-5),
    ),
    "mixtral": ConfigurationClass(
        "MixtralForCausalLM",
        values_of(
            (32000, 4096, 14336, 32, 32, 131072),
            num_key_value_heads=8,
            head_dim=None,
            rms_norm_eps=1e-5,
            sliding_window=None,
            num_experts_per_tok=2,
            num_local_experts=8,
        ),
        theta=1_000_000.0,
        makes_windows=True,
    ),
    "qwen3_moe": ConfigurationClass(
        "Qwen3MoeForCausalLM",
        values_of(
            (151936, 2048, 6144, 24, 32, 32768),
            **_WINDOWS,
            **_BIASES,
            num_key_value_heads=4,
            decoder_sparse_step=1,
            moe_intermediate_size=768,
            num_experts_per_tok=8,
            num_experts=128,
            norm_topk_prob=False,
            mlp_only_layers=[],
        ),
        makes_windows=True,
    ),
    "qwen2_moe": ConfigurationClass(
        "Qwen2MoeForCausalLM",
        values_of((151936, 2048, 5632, 24, 16, 32768), **_QWEN)
        | {"num_key_value_heads": 16, "decoder_sparse_step": 1, "mlp_only_layers": []}
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
        | {"num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": False}
        | {"qkv_bias": True},
        layer_types=early_windows,
        makes_windows=True,
    ),
    "olmoe": ConfigurationClass(
        "OlmoeForCausalLM",
        values_of(
            (50304, 2048, 2048, 16, 16, 4096),
            **_BIASES,
            rms_norm_eps=1e-5,
            clip_qkv=None,
            num_experts_per_tok=8,
            num_experts=64,
            norm_topk_prob=False,
        ),
    ),
    "gpt_oss": ConfigurationClass(
        "GptOssForCausalLM",
        values_of(
            (201088, 2880, 2880, 36, 64, 131072),
            num_key_value_heads=8,
            head_dim=64,
            rms_norm_eps=1e-5,
            sliding_window=128,
            layer_types=None,
            num_experts_per_tok=4,
            num_local_experts=128,
            swiglu_alpha=1.702,
            swiglu_limit=7.0,
            attention_bias=True,
        )
        | {"rope_parameters": _GPT_OSS_ROTARY},
        theta=150_000.0,
        layer_types=alternating_windows,
        makes_windows=True,
    ),
    "granite": ConfigurationClass(
        "GraniteForCausalLM",
        values_of(
            (32000, 4096, 11008, 32, 32, 2048),
            **_BIASES,
            mlp_bias=False,
            embedding_multiplier=1.0,
            logits_scaling=1.0,
            residual_multiplier=1.0,
            attention_multiplier=1.0,
        ),
    ),
    "cohere": ConfigurationClass(
        "CohereForCausalLM",
        values_of((256000, 8192, 22528, 40, 64, 8192), **_COHERE, use_qk_norm=False),
        theta=500_000.0,
    ),
    "cohere2": ConfigurationClass(
        "Cohere2ForCausalLM",
        values_of(
            (256000, 8192, 22528, 40, 64, 8192), **_COHERE, sliding_window=4096, layer_types=None
        ),
        layer_types=windows_but_every(4),
        makes_windows=True,
    ),
}
"""By Transformers' ``model_type``."""
