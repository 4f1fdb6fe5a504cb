"""Configurations of models whose layers differ in their heads, or have inputs of their own (Gemma
4); see unlike_layers.py.

Layers with a window and those without have other heads. The last ones may read the keys and values
of earlier ones.
"""

from typing import Any

from draftwood.models.configuration_class import FULL


def heads_of(config: Any, layer: int) -> tuple[int, int]:
    """Heads of keys and values of a layer, and dimensions of a head."""
    heads, dim = config.num_key_value_heads, config.head_size
    told = config.per_layer_config
    if told is not None:
        own = told.get(str(layer)) or {}
        return own.get("num_key_value_heads", heads), own.get("head_dim", dim)
    if config.layer_types[layer] != FULL:
        return heads, dim
    shared = config.num_global_key_value_heads if config.attention_k_eq_v else None
    return shared or heads, config.global_head_dim or dim


def source_of(config: Any, layer: int) -> int | None:
    """The layer whose keys and values another one reads: the last of its kind that has some."""
    kinds, shared = config.layer_types, config.num_kv_shared_layers
    first = len(kinds) - shared
    if layer < first:
        return None
    return max(i for i in range(first) if kinds[i] == kinds[layer])


def takes_keys_for_values(config: Any, layer: int) -> bool:
    """True where keys are values too."""
    return bool(config.attention_k_eq_v) and config.layer_types[layer] == FULL


def why_not(config: Any) -> str | None:
    """Say why a model of such a configuration cannot be read; None if it can."""
    kinds, shared = config.layer_types, config.num_kv_shared_layers
    if config.use_bidirectional_attention == "all":
        return "it sees what comes after a token"
    if type(shared) is not int or not 0 <= shared < len(kinds):
        return f"its num_kv_shared_layers is {shared!r}"
    if set(kinds[len(kinds) - shared :]) - set(kinds[: len(kinds) - shared]):
        return "layers share keys of a kind that no layer before them has"
    told = config.per_layer_config
    strange = [] if told is None else [each for own in told.values() for each in own]
    if set(strange) - {"head_dim", "num_key_value_heads"}:
        return f"its layers differ in {', '.join(sorted(set(strange)))}"
    for layer in range(len(kinds)):
        heads, dim = heads_of(config, layer)
        if type(heads) is not int or heads < 1 or config.num_attention_heads % heads:
            return f"its {config.num_attention_heads} heads do not share {heads} keys evenly"
        if type(dim) is not int or dim < 2 or dim % 2:
            return f"its heads have {dim} dimensions"
    return _why_no_inputs(config)


def _why_no_inputs(config: Any) -> str | None:
    size, tokens = config.hidden_size_per_layer_input, config.vocab_size_per_layer_input
    if not size:
        return None
    if type(size) is not int or size < 1:
        return f"its hidden_size_per_layer_input is {size!r}"
    if tokens != config.vocab_size:
        return f"its layers embed {tokens} tokens, and the model {config.vocab_size}"
    return None
