"""Shapes of a model's tensors by its configuration, for the families that run natively."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from draftwood.models.families import FAMILIES, Family

Shape = tuple[int, ...]

BIASED_INPUTS = {"Qwen2ForCausalLM": True, "StableLmForCausalLM": "use_qkv_bias"}
"""Classes whose queries, keys and values may have biases where attention's output has none: the
setting that says so, or True where they always do.
"""
NORMED_HEADS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")
"""Classes that norm queries and keys head by head."""
NORMED_WHOLE = ("Olmo2ForCausalLM", "OlmoeForCausalLM")
"""Classes that norm queries and keys across all heads."""
NORMS_WITH_BIAS = ("StableLmForCausalLM",)
WITH_SINKS = ("GptOssForCausalLM",)
"""Classes whose attention has sinks, and whose experts and router have biases."""


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Give the shapes of all tensors, by their names in Transformers' state dictionary.

    Weights of experts are told part by part, as ``model.layers.0.mlp.experts.gate.weight``
    [experts outputs inputs], and their biases likewise. A tied output head is left out.

    Args:
        config: of the text part, as config.json has it; ``architectures`` names its class.

    Raises:
        KeyError: for a class that is none of the ``FAMILIES``, and for settings that are missing.
    """
    name, hidden = config["architectures"][0], config["hidden_size"]
    family, norm = FAMILIES[name], _norm("model.norm", hidden, name)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        network = _experts if _is_mixture(config, layer) else _network
        parts = _attention(config, family) | network(config, family) | _norms(config, family)
        shapes |= {f"model.layers.{layer}.{part}": shape for part, shape in parts.items()}
    tied = (
        {} if config["tie_word_embeddings"] else {"lm_head.weight": (config["vocab_size"], hidden)}
    )
    return shapes | norm | tied


def _attention(config: Mapping[str, Any], family: Family) -> dict[str, Shape]:
    name, hidden, heads = (
        config["architectures"][0],
        config["hidden_size"],
        config["num_attention_heads"],
    )
    head_dim = config.get("head_dim") or hidden // heads
    query, shared = heads * head_dim, (config.get("num_key_value_heads") or heads) * head_dim
    outputs = (query, shared, shared)
    if len(family.query_key_value) == 1:
        outputs = (sum(outputs),)
    biased = bool(config.get("attention_bias"))
    told = BIASED_INPUTS.get(name, "attention_bias")
    biased_inputs = told is True or bool(config.get(told))
    shapes = _linear("self_attn.o_proj", hidden, query, biased)
    for part, size in zip(family.query_key_value, outputs, strict=True):
        shapes |= _linear(f"self_attn.{part}", size, hidden, biased_inputs)
    if name in (*NORMED_HEADS, *NORMED_WHOLE):
        whole = name in NORMED_WHOLE
        shapes |= {"self_attn.q_norm.weight": (query if whole else head_dim,)}
        shapes |= {"self_attn.k_norm.weight": (shared if whole else head_dim,)}
    return shapes | ({"self_attn.sinks": (heads,)} if name in WITH_SINKS else {})


def _network(config: Mapping[str, Any], family: Family) -> dict[str, Shape]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    biased, outputs = bool(config.get("mlp_bias")), 2 * inner // len(family.gate_up)
    shapes = _linear("mlp.down_proj", hidden, inner, biased)
    for part in family.gate_up:
        shapes |= _linear(f"mlp.{part}", outputs, hidden, biased)
    return shapes


def _experts(config: Mapping[str, Any], family: Family) -> dict[str, Shape]:
    biased = config["architectures"][0] in WITH_SINKS
    hidden, count = config["hidden_size"], _count(config)
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    shapes = _linear(f"mlp.{family.router}", count, hidden, biased)
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    for part, (outputs, inputs) in sizes.items():
        of = _linear(f"mlp.experts.{part}", outputs, inputs, biased)
        shapes |= {name: (count, *shape) for name, shape in of.items()}
    return shapes


def _count(config: Mapping[str, Any]) -> int:
    return config.get("num_local_experts") or config.get("num_experts") or 0


def _is_mixture(config: Mapping[str, Any], layer: int) -> bool:
    """True if a layer has experts; some layers of Qwen3 may have a network in their place."""
    dense = layer in (config.get("mlp_only_layers") or ())
    turn = (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0
    return bool(_count(config)) and not dense and turn


def _norms(config: Mapping[str, Any], family: Family) -> dict[str, Shape]:
    norms = family.norms
    parallel = family.is_parallel(SimpleNamespace(**config))
    named = (
        norms.attention,
        None if parallel else norms.mlp,
        norms.after_attention,
        norms.after_mlp,
    )
    shapes = dict[str, Shape]()
    for name in named:
        if name is not None:
            shapes |= _norm(name, config["hidden_size"], config["architectures"][0])
    return shapes


def _norm(module: str, size: int, name: str) -> dict[str, Shape]:
    biased = name in NORMS_WITH_BIAS
    return {f"{module}.weight": (size,)} | ({f"{module}.bias": (size,)} if biased else {})


def _linear(module: str, outputs: int, inputs: int, biased: bool) -> dict[str, Shape]:
    weight = {f"{module}.weight": (outputs, inputs)}
    return weight | ({f"{module}.bias": (outputs,)} if biased else {})
