"""The families of models that the native and the lean path run, each as what it does otherwise than
Llama.

To add one, add an entry to ``FAMILIES``, and a tiny configuration to ``tests/families.py``.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from draftwood.models.family import (
    Family,
    LayerNorms,
    Modules,
    Routing,
    Scales,
    StateLayers,
    Tensors,
)


def _gemma3(config: Any) -> Scales:
    return Scales(
        embedding=config.hidden_size**0.5,
        attention=config.query_pre_attn_scalar**-0.5,
        logit_cap=config.final_logit_softcapping,
    )


def _gemma2(config: Any) -> Scales:
    return replace(_gemma3(config), score_cap=config.attn_logit_softcapping)


def _granite(config: Any) -> Scales:
    return Scales(
        inputs=config.embedding_multiplier,
        attention=config.attention_multiplier,
        residual=config.residual_multiplier,
        logits=1 / config.logits_scaling,
    )


def _gpt_oss(config: Any) -> Scales:
    return Scales(
        gate_slope=getattr(config, "swiglu_alpha", 1.702),
        gate_limit=getattr(config, "swiglu_limit", 7.0),
        gated_shift=1.0,
    )


def _ministral3(config: Any) -> Scales:
    rope = config.rope_parameters
    return Scales(
        query_growth=rope.get("llama_4_scaling_beta") or 0.0,
        growth_every=rope.get("original_max_position_embeddings", config.max_position_embeddings),
    )


def _routing(config: Any) -> Routing:
    return Routing(config.num_experts_per_tok, config.norm_topk_prob)


def _routing_to_one(config: Any) -> Routing:
    """Shares that sum to one; the softmax of the largest is that of all, scaled to do so."""
    return Routing(config.num_experts_per_tok, True)


def _sigmoid_routing(config: Any, sum_epsilon: float = 0.0) -> Routing:
    return Routing(
        config.num_experts_per_tok,
        config.norm_topk_prob,
        is_sigmoid=True,
        sum_epsilon=sum_epsilon,
        scale=config.routed_scaling_factor,
    )


def _unless(key: str, reason: str) -> Callable[[Any], str | None]:
    """A check that refuses configurations with this key."""
    return lambda config: reason if getattr(config, key, False) else None


_UNLIKE_HEADS = "its norms of queries and keys have a weight for each head"
_CAUSAL = _unless("use_bidirectional_attention", "it sees what comes after a token")


def _cohere(title: str, rotary: Callable[[Any, int], str | None]) -> Family:
    return Family(
        title,
        is_layer_norm=True,
        epsilon="layer_norm_eps",
        is_interleaved=True,
        is_parallel=lambda config: True,
        rotary=rotary,
        scales=lambda config: Scales(logits=config.logit_scale),
        why_not=_unless("use_qk_norm", _UNLIKE_HEADS),
    )


def _read_by(module: str, name: str) -> Callable[[Any], Any]:
    """A fact by a function whose module is imported where a configuration asks for it."""
    return lambda config: getattr(import_module(f"draftwood.models.{module}"), name)(config)


def _by_kind_of_layer(config: Any, layer: int) -> str:
    """A table of rotary frequencies for layers with a window, and another one."""
    return f"{config.layer_types[layer]}_"


_BEHIND = LayerNorms(None, None, "post_attention_layernorm", "post_feedforward_layernorm")
_AROUND = replace(_BEHIND, attention="input_layernorm", mlp="pre_feedforward_layernorm")
_GEMMA4 = Family(
    "Gemma 4",
    _AROUND,
    tensors=Tensors("each"),
    activation="hidden_activation",
    modules=Modules(mixture=""),
    router="router.proj",
    is_unlike=True,
    rotary=_by_kind_of_layer,
    scales=lambda config: Scales(
        embedding=config.hidden_size**0.5, attention=1.0, logit_cap=config.final_logit_softcapping
    ),
    routing=lambda config: Routing(config.top_k_experts, True),
    why_not=_read_by("unlike_heads", "why_not"),
)


def _with_images(family: Family) -> Family:
    title = f"{family.title} with images (text alone)"
    return replace(family, title=title, prefix="model.language_model.")


_DELTA_RULE = StateLayers("linear_attention", "linear_attn", gates_queries=True)
_QWEN35 = Family(
    "Qwen3.5",
    norm_shift=1.0,
    tensors=Tensors("each"),
    states=_DELTA_RULE,
    why_not=_read_by("state_sizes", "delta_rule"),
)
_GRANITE_EXPERTS = Family(
    "Granite (experts)",
    modules=Modules(mixture="block_sparse_moe."),
    router="router",
    scales=_granite,
    routing=_routing_to_one,
)
_GRANITE_SHARED = replace(
    _GRANITE_EXPERTS,
    title="Granite (experts and a shared one)",
    modules=Modules(
        network="shared_mlp", down="output_linear", mixture="block_sparse_moe.", shares_network=True
    ),
    gate_up=("input_linear",),
    inner_size=lambda config: config.shared_intermediate_size,
)
_LFM2 = Family(
    "LFM2",
    LayerNorms("operator_norm", "ffn_norm"),
    tensors=Tensors("each"),
    modules=Modules(
        *("out_proj", "q_layernorm", "k_layernorm", "feed_forward", "w2", "embedding_norm")
    ),
    gate_up=("w1", "w3"),
    fixed_activation="silu",
    states=StateLayers("conv", "conv"),
    epsilon="norm_eps",
    why_not=_read_by("state_sizes", "convolution"),
)
_QWEN35_EXPERTS = replace(_QWEN35, title="Qwen3.5 (experts)", routing=_routing_to_one)
_MINISTRAL3 = Family("Ministral 3", scales=_ministral3)
_GEMMA3 = Family(
    "Gemma 3",
    _AROUND,
    tensors=Tensors("each"),
    norm_shift=1.0,
    activation="hidden_activation",
    rotary=_by_kind_of_layer,
    scales=_gemma3,
    why_not=_CAUSAL,
)
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("Llama"),
    "MistralForCausalLM": Family("Mistral"),
    "Ministral3ForCausalLM": _MINISTRAL3,
    "Mistral3ForConditionalGeneration": _with_images(_MINISTRAL3),
    "Qwen2ForCausalLM": Family("Qwen2", tensors=Tensors(biases_inputs=True)),
    "Qwen3ForCausalLM": Family("Qwen3", tensors=Tensors("each")),
    "Qwen3_5ForCausalLM": _QWEN35,
    "Qwen3_5ForConditionalGeneration": _with_images(_QWEN35),
    "Lfm2ForCausalLM": replace(_LFM2, inner_size=_read_by("state_sizes", "lfm2_inner_size")),
    "Lfm2MoeForCausalLM": replace(
        _LFM2,
        title="LFM2 (experts)",
        modules=replace(_LFM2.modules, mixture="feed_forward.", choice_bias="expert_bias"),
        routing=lambda config: _sigmoid_routing(config, sum_epsilon=1e-6),
    ),
    "SeedOssForCausalLM": Family("Seed-OSS"),
    "ArceeForCausalLM": Family("Arcee", gate_up=("up_proj",), is_gated=False),
    "NemotronForCausalLM": Family(
        "Nemotron",
        tensors=Tensors(biases_norms=True),
        is_layer_norm=True,
        epsilon="norm_eps",
        norm_shift=1.0,
        gate_up=("up_proj",),
        is_gated=False,
    ),
    "Starcoder2ForCausalLM": Family(
        "StarCoder 2",
        tensors=Tensors(biases_norms=True),
        is_layer_norm=True,
        epsilon="norm_epsilon",
        modules=Modules(down="c_proj"),
        gate_up=("c_fc",),
        is_gated=False,
    ),
    "Ernie4_5ForCausalLM": Family("ERNIE 4.5", is_interleaved=True),
    "StableLmForCausalLM": Family(
        "StableLM",
        tensors=Tensors(biases_norms=True),
        is_layer_norm=True,
        epsilon="layer_norm_eps",
        is_parallel=lambda config: config.use_parallel_residual,
        why_not=_unless("qk_layernorm", _UNLIKE_HEADS),
    ),
    "GemmaForCausalLM": Family(
        "Gemma",
        norm_shift=1.0,
        scales=lambda config: Scales(embedding=config.hidden_size**0.5),
        why_not=_CAUSAL,
    ),
    "Gemma2ForCausalLM": Family(
        "Gemma 2", _AROUND, norm_shift=1.0, activation="hidden_activation", scales=_gemma2
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(
        _with_images(_GEMMA3), scales=lambda config: replace(_gemma3(config), logit_cap=None)
    ),
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _with_images(_GEMMA4),
    "Phi3ForCausalLM": Family(
        "Phi-3, Phi-4", query_key_value=("qkv_proj",), gate_up=("gate_up_proj",)
    ),
    "SmolLM3ForCausalLM": Family(
        "SmolLM3", rotary=lambda config, layer: "" if config.no_rope_layers[layer] else None
    ),
    "Olmo2ForCausalLM": Family("OLMo 2", _BEHIND, tensors=Tensors("all")),
    "Olmo3ForCausalLM": Family("OLMo 3", _BEHIND, tensors=Tensors("all"), rotary=_by_kind_of_layer),
    "Exaone4ForCausalLM": Family(
        "EXAONE 4",
        _BEHIND,
        tensors=Tensors("each"),
        rotary=lambda config, layer: (
            ""
            if config.sliding_window is None or config.layer_types[layer] == "sliding_attention"
            else None
        ),
    ),
    "Glm4ForCausalLM": Family(
        "GLM-4",
        LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
        tensors=Tensors(biases_output=False),
        gate_up=("gate_up_proj",),
        is_interleaved=True,
    ),
    "MixtralForCausalLM": Family("Mixtral", routing=_routing_to_one),
    "Qwen3MoeForCausalLM": Family("Qwen3 (experts)", tensors=Tensors("each"), routing=_routing),
    "Qwen2MoeForCausalLM": Family("Qwen2 (experts)", routing=_routing),
    "Qwen3_5MoeForCausalLM": _QWEN35_EXPERTS,
    "Qwen3_5MoeForConditionalGeneration": _with_images(_QWEN35_EXPERTS),
    "Qwen3NextForCausalLM": replace(
        _QWEN35,
        title="Qwen3-Next",
        states=replace(_DELTA_RULE, is_joined=True),
        routing=_routing,
    ),
    "Glm4MoeForCausalLM": Family(
        "GLM-4 (experts)",
        tensors=Tensors("told", biases_output=False, in_float32=("e_score_correction_bias",)),
        modules=Modules(choice_bias="gate.e_score_correction_bias", shared="shared_experts"),
        routing=_sigmoid_routing,
        why_not=lambda config: (
            None if config.n_group == 1 else "its experts are chosen by groups of them"
        ),
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        "ERNIE 4.5 (experts)",
        is_interleaved=True,
        tensors=Tensors(in_float32=("mlp.gate.weight", "e_score_correction_bias")),
        modules=Modules(
            choice_bias="gate.moe_statics.e_score_correction_bias", shared="shared_experts"
        ),
        routing=_routing_to_one,
        why_not=_unless("use_bias", "its experts have biases"),
    ),
    "MiniMaxM2ForCausalLM": Family(
        "MiniMax-M2",
        tensors=Tensors("all"),
        modules=Modules(choice_bias="e_score_correction_bias"),
        routing=lambda config: Routing(config.num_experts_per_tok, True, is_sigmoid=True),
    ),
    "OlmoeForCausalLM": Family(
        "OLMoE",
        tensors=Tensors("all"),
        routing=_routing,
        why_not=lambda config: (
            None if config.clip_qkv is None else "it clips queries, keys and values"
        ),
    ),
    "GptOssForCausalLM": Family(
        "GPT-OSS",
        tensors=Tensors(has_sinks=True),
        fixed_activation="silu",
        router="router",
        routing=_routing_to_one,
        scales=_gpt_oss,
    ),
    "GraniteForCausalLM": Family("Granite", scales=_granite),
    "GraniteMoeForCausalLM": _GRANITE_EXPERTS,
    "GraniteMoeSharedForCausalLM": _GRANITE_SHARED,
    "GraniteMoeHybridForCausalLM": replace(
        _GRANITE_SHARED,
        title="Granite 4 (state spaces)",
        states=StateLayers("linear_attention", "mamba"),
        rotary=lambda config, layer: "" if config.position_embedding_type == "rope" else None,
        why_not=_read_by("state_sizes", "state_space"),
    ),
    "BambaForCausalLM": Family(
        "Bamba",
        LayerNorms("input_layernorm", "pre_ff_layernorm"),
        modules=Modules(network="feed_forward", last_norm="final_layernorm"),
        states=StateLayers("linear_attention", "mamba"),
        why_not=_read_by("state_sizes", "state_space"),
    ),
    "CohereForCausalLM": _cohere("Cohere (Command R)", lambda config, layer: ""),
    "Cohere2ForCausalLM": _cohere(
        "Cohere 2 (Command R7B, Command A)",
        lambda config, layer: "" if config.layer_types[layer] == "sliding_attention" else None,
    ),
}
"""By the name of the class in Transformers."""
