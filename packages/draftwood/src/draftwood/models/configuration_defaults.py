"""Defaults of the classes of configurations of Transformers, for what a config.json leaves out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Rule = Callable[[Any], list[str]]
_KINDS = ("full_attention", "sliding_attention")
_OF_STATES = ("full_attention", "linear_attention")


@dataclass(frozen=True)
class ConfigurationClass:
    """A class of configurations.

    Attributes:
        architecture: of its models, by their name in ``FAMILIES``; empty for one that is a part of
            others alone.
        values: of keys that the class knows and this library reads.
        theta: base of rotary frequencies; of layers that see all where ``local_theta`` is there.
        local_theta: of layers with a window, which go by a table of their own.
        partial: part of a head's dimensions that is rotated.
        layer_types: kinds of the layers; None where the class has none.
        makes_windows: False for models that ignore a window.
        part: type of the text part; empty where there is none.
        usual_part: type of a text part that names none, where Transformers takes another.
    """

    architecture: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    theta: float = 10_000.0
    local_theta: float | None = None
    partial: float | None = None
    layer_types: Rule | None = None
    makes_windows: bool = False
    part: str = ""
    usual_part: str = ""


def _kinds(config: Any, is_sliding: Callable[[int], bool]) -> list[str]:
    return [_KINDS[is_sliding(layer)] for layer in range(config.num_hidden_layers)]


def _late(config: Any) -> list[str]:
    """Windows in the upper layers (Qwen)."""
    window, first = config.sliding_window, config.max_window_layers
    return _kinds(config, lambda layer: window is not None and layer >= first)


def _early(config: Any) -> list[str]:
    """Windows in every second of the lower layers (Qwen2's mixtures)."""
    most, is_on = config.max_window_layers, config.use_sliding_window
    return _kinds(config, lambda layer: bool(is_on and (layer + 1) % 2 and layer < most))


def _every(usual: int) -> Rule:
    """Windows in all but each so-manieth layer."""

    def rule(config: Any) -> list[str]:
        every = getattr(config, "sliding_window_pattern", usual)
        return _kinds(config, lambda layer: bool((layer + 1) % every))

    return rule


def _with_states(config: Any) -> list[str]:
    """Running states in all but each so-manieth layer (Qwen3.5)."""
    every = getattr(config, "full_attention_interval", 4)
    return [_OF_STATES[bool((i + 1) % every)] for i in range(config.num_hidden_layers)]


def _alternating(config: Any) -> list[str]:
    return _kinds(config, lambda layer: bool((layer + 1) % 2))


def _without_rotary(config: Any) -> list[str]:
    """Windows in layers without rotary positions (SmolLM3)."""
    is_on = config.use_sliding_window and config.sliding_window is not None
    return _kinds(config, lambda layer: bool(is_on and not config.no_rope_layers[layer]))


def _values(sizes: tuple[int, ...], **further: Any) -> dict[str, Any]:
    """Values of a class.

    Args:
        sizes: of the vocabulary, of states, of the gated network; layers, heads, positions.
    """
    names = (
        *("vocab_size", "hidden_size", "intermediate_size"),
        *("num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
    )
    usual = {"num_key_value_heads": None, "tie_word_embeddings": False, "rope_parameters": None}
    act = {} if "hidden_activation" in further else {"hidden_act": "silu"}
    epsilon = {} if "layer_norm_eps" in further else {"rms_norm_eps": 1e-6}
    return dict(zip(names, sizes, strict=True)) | usual | act | epsilon | further


def _without_network(values: dict[str, Any]) -> dict[str, Any]:
    """Values of a class whose layers all have experts."""
    return {name: each for name, each in values.items() if name != "intermediate_size"}


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
_STATES = {
    **{**_BIASES, "layer_types": None, "head_dim": 256, "linear_conv_kernel_dim": 4},
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32},
}
_SHARED = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
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
        _values((32000, 4096, 11008, 32, 32, 2048), **_BIASES, mlp_bias=False, head_dim=None),
    ),
    "mistral": ConfigurationClass(
        "MistralForCausalLM",
        _values(
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
        _values(
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
        _values(
            (155136, 4096, 27648, 64, 80, 524288),
            **{"attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
            **_WIDE,
        ),
    ),
    "ernie4_5": ConfigurationClass(
        "Ernie4_5ForCausalLM",
        _values(
            (103424, 1024, 3072, 18, 16, 131072),
            **{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5},
            **{"use_bias": False, "tie_word_embeddings": True},
        ),
        theta=500_000.0,
    ),
    "exaone4": ConfigurationClass(
        "Exaone4ForCausalLM",
        _values(
            (102400, 4096, 16384, 32, 32, 2048),
            **{"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "layer_types": None},
            **{"sliding_window": 4096, "sliding_window_pattern": 4},
        ),
        layer_types=_every(4),
        makes_windows=True,
    ),
    "glm4": ConfigurationClass(
        "Glm4ForCausalLM",
        _values(
            (151552, 4096, 13696, 40, 32, 131072),
            **{"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07},
            attention_bias=True,
        ),
        partial=0.5,
    ),
    "qwen2": ConfigurationClass(
        "Qwen2ForCausalLM",
        _values((151936, 4096, 22016, 32, 32, 32768), **_QWEN),
        layer_types=_late,
        makes_windows=True,
    ),
    "qwen3": ConfigurationClass(
        "Qwen3ForCausalLM",
        _values((151936, 4096, 22016, 32, 32, 32768), **_QWEN, **_BIASES, head_dim=128),
        layer_types=_late,
        makes_windows=True,
    ),
    "qwen3_5_text": ConfigurationClass(
        "Qwen3_5ForCausalLM",
        _values((248320, 4096, 12288, 32, 16, 32768), **_STATES) | {"num_key_value_heads": 4},
        partial=0.25,
        layer_types=_with_states,
    ),
    "qwen3_5": ConfigurationClass("Qwen3_5ForConditionalGeneration", part="qwen3_5_text"),
    "qwen3_5_moe_text": ConfigurationClass(
        "Qwen3_5MoeForCausalLM",
        _without_network(
            _values((248320, 2048, 0, 40, 16, 32768), **_STATES, **_SHARED, num_experts=256)
        )
        | {"num_key_value_heads": 2, "num_experts_per_tok": 8},
        partial=0.25,
        layer_types=_with_states,
    ),
    "qwen3_5_moe": ConfigurationClass(
        "Qwen3_5MoeForConditionalGeneration", part="qwen3_5_moe_text"
    ),
    "qwen3_next": ConfigurationClass(
        "Qwen3NextForCausalLM",
        _values((151936, 2048, 5632, 48, 16, 32768), **_STATES, **_SHARED, num_experts=512)
        | {"num_key_value_heads": 2, "num_experts_per_tok": 10, "norm_topk_prob": True}
        | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        partial=0.25,
        layer_types=_with_states,
    ),
    "stablelm": ConfigurationClass(
        "StableLmForCausalLM",
        _values(
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
        _values(
            (256000, 3072, 24576, 28, 16, 8192),
            **_GEMMA,
            num_key_value_heads=16,
            head_dim=256,
        )
        | {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma2": ConfigurationClass(
        "Gemma2ForCausalLM",
        _values((256000, 2304, 9216, 26, 8, 8192), **_GEMMA2, **_CAPS),
        layer_types=_alternating,
        makes_windows=True,
    ),
    "gemma3_text": ConfigurationClass(
        "Gemma3ForCausalLM",
        _values((262208, 2304, 9216, 26, 8, 131072), **_GEMMA2, **dict.fromkeys(_CAPS))
        | {"use_bidirectional_attention": False},
        theta=1_000_000.0,
        local_theta=10_000.0,
        layer_types=_every(6),
        makes_windows=True,
    ),
    "gemma3": ConfigurationClass("Gemma3ForConditionalGeneration", part="gemma3_text"),
    "phi3": ConfigurationClass(
        "Phi3ForCausalLM",
        _values(
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
        _values(
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
        layer_types=_without_rotary,
        makes_windows=True,
    ),
    "olmo2": ConfigurationClass(
        "Olmo2ForCausalLM",
        _values((50304, 4096, 11008, 32, 32, 2048), **_BIASES, rms_norm_eps=1e-5),
    ),
    "mixtral": ConfigurationClass(
        "MixtralForCausalLM",
        _values(
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
        _values(
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
        _values((151936, 2048, 5632, 24, 16, 32768), **_QWEN)
        | {"num_key_value_heads": 16, "decoder_sparse_step": 1, "mlp_only_layers": []}
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}
        | {"num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": False}
        | {"qkv_bias": True},
        layer_types=_early,
        makes_windows=True,
    ),
    "olmoe": ConfigurationClass(
        "OlmoeForCausalLM",
        _values(
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
        _values(
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
        layer_types=_alternating,
        makes_windows=True,
    ),
    "granite": ConfigurationClass(
        "GraniteForCausalLM",
        _values(
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
        _values((256000, 8192, 22528, 40, 64, 8192), **_COHERE, use_qk_norm=False),
        theta=500_000.0,
    ),
    "cohere2": ConfigurationClass(
        "Cohere2ForCausalLM",
        _values(
            (256000, 8192, 22528, 40, 64, 8192), **_COHERE, sliding_window=4096, layer_types=None
        ),
        layer_types=_every(4),
        makes_windows=True,
    ),
}
"""By Transformers' ``model_type``."""
