"""Shapes of a model's tensors by its configuration, for the families that run natively."""

from collections.abc import Sequence

from draftwood.models.configuration import ModelConfiguration
from draftwood.models.configuration_class import APART
from draftwood.models.family import Family

Shape = tuple[int, ...]

INPUTS = "embed_tokens_per_layer"
"""End of the name of what layers are given; rows of it are read where they lie in a file."""
TABLES = ("embed_tokens.weight", f"{INPUTS}.weight")
"""Ends of the names of embeddings."""
SMALL_OF_STATES = tuple(
    f"{name}.weight"
    for name in (
        *("linear_attn.in_proj_a", "linear_attn.in_proj_b", "linear_attn.in_proj_ba"),
        *("linear_attn.conv1d", "conv.conv", "mamba.conv1d", "mamba.norm"),
    )
)
"""Tensors of a recurrence that are no matrices, or too small to be packed by themselves."""


def tensor_shapes(config: ModelConfiguration) -> dict[str, Shape]:
    """Give the shapes of all tensors, by their names in Transformers' state dictionary.

    Weights of experts are told part by part, as ``model.layers.0.mlp.experts.gate.weight``
    [experts outputs inputs], and their biases likewise. A tied output head is left out.
    """
    hidden, vocab = config.get("hidden_size"), config.get("vocab_size")
    prefix = config.family.prefix
    shapes: dict[str, Shape] = {f"{prefix}embed_tokens.weight": (vocab, hidden)}
    own = dict[int, dict[str, Shape]]()
    for layer in range(config.get("num_hidden_layers")):
        parts = _mixer(config, layer) | _norms(config)
        if has_experts := _is_mixture(config, layer):
            parts |= _experts(config)
        shares = config.family.modules.shares_network and config.get("shared_intermediate_size")
        if not has_experts or config.family.is_unlike or shares:
            parts |= _network(config)
        own[layer] = parts
    if config.family.is_unlike:
        from draftwood.models import unlike_layers

        shapes |= unlike_layers.shapes_of_inputs(config)
        own = {i: unlike_layers.of_layer(config, i, parts) for i, parts in own.items()}
    for layer, parts in own.items():
        shapes |= {f"{prefix}layers.{layer}.{part}": shape for part, shape in parts.items()}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes | _norm(f"{prefix}{config.family.modules.last_norm}", config)


def _mixer(config: ModelConfiguration, layer: int) -> dict[str, Shape]:
    states = config.family.states
    if states is None or not config.has_state(layer):
        return _attention(config, layer)
    shapes = {"linear_attn": _recurrence, "mamba": _state_space, "conv": _convolution}
    return shapes[states.module](config)


def is_never_rounded(config: ModelConfiguration, name: str) -> bool:
    """True for a tensor that stays in float32 whatever the type of the model is."""
    return name.endswith(config.family.tensors.in_float32)


def matrix_shapes(config: ModelConfiguration) -> dict[str, Shape]:
    """Shapes of the tensors that are products with rows, by their names: all matrices but the
    embedding and what chooses experts.
    """
    others = (*TABLES, *small_modules(config.family))
    return {
        name: shape
        for name, shape in tensor_shapes(config).items()
        if len(shape) > 1 and name.endswith(".weight") and not name.endswith(others)
    }


def small_modules(family: Family) -> tuple[str, ...]:
    """Ends of the names of matrices that choose experts, or are too small to be packed alone."""
    routers = (family.router, "shared_expert_gate")
    mixture = family.modules.mixture or "."
    return (*(f"{mixture}{name}.weight" for name in routers), *SMALL_OF_STATES)


def require_shape(name: str, shape: Shape, wanted: Shape) -> None:
    """Raise ValueError for a tensor of another shape than the model's."""
    if shape != wanted:
        raise ValueError(f"its tensor {other_shape(name, shape, wanted)}")


def require_none(missing: Sequence[str]) -> None:
    """Raise ValueError where tensors are missing."""
    if missing:
        raise ValueError(f"{len(missing)} tensors are missing, the first is {missing[0]}")


def other_shape(name: str, stored: Sequence[int], by_configuration: Sequence[int]) -> str:
    """Message for a tensor of another shape than the model's."""
    sizes = [" x ".join(map(str, shape)) for shape in (stored, by_configuration)]
    return f"{name} is {sizes[0]}, and {sizes[1]} by its configuration"


def _attention(config: ModelConfiguration, layer: int) -> dict[str, Shape]:
    family, names = config.family, config.family.query_key_value
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    kv_heads, dim = config.heads[layer]
    query, shared = heads * dim, kv_heads * dim
    states, modules, tensors = family.states, family.modules, family.tensors
    gate = query if states is not None and states.gates_queries else 0
    outputs = (query + gate, shared, shared) if len(names) == 3 else (query + 2 * shared,)
    has_bias = bool(getattr(config, "attention_bias", getattr(config, "use_bias", False)))
    told = getattr(config, "qkv_bias", getattr(config, "use_qkv_bias", has_bias))
    inputs_have = tensors.biases_inputs or bool(told)
    outputs_have = tensors.biases_output and bool(getattr(config, "attention_out_bias", has_bias))
    shapes = _linear(f"self_attn.{modules.output}", query, hidden, outputs_have)
    for part, size in zip(names, outputs, strict=True):
        shapes |= _linear(f"self_attn.{part}", hidden, size, inputs_have)
    normed = tensors.normed_heads
    if normed is not None and (normed != "told" or config.get("use_qk_norm")):
        sizes = (query, shared) if normed == "all" else (dim, dim)
        for norm, size in zip((modules.query_norm, modules.key_norm), sizes, strict=True):
            shapes[f"self_attn.{norm}.weight"] = (size,)
    return shapes | ({"self_attn.sinks": (heads,)} if tensors.has_sinks else {})


def _recurrence(config: ModelConfiguration) -> dict[str, Shape]:
    states = config.family.states
    hidden, heads = config.get("hidden_size"), config.get("linear_num_value_heads")
    values = heads * config.get("linear_value_head_dim")
    keys = config.get("linear_num_key_heads") * config.get("linear_key_head_dim")
    if states is not None and states.is_joined and not getattr(config, APART, False):
        sizes = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * heads}
    else:
        sizes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values}
        sizes |= {"in_proj_a": heads, "in_proj_b": heads}
    shapes: dict[str, Shape] = {
        "linear_attn.conv1d.weight": (2 * keys + values, 1, config.get("linear_conv_kernel_dim")),
        **{f"linear_attn.{name}": (heads,) for name in ("A_log", "dt_bias")},
        "linear_attn.norm.weight": (config.get("linear_value_head_dim"),),
    }
    for name, size in sizes.items():
        shapes |= _linear(f"linear_attn.{name}", hidden, size, False)
    return shapes | _linear("linear_attn.out_proj", values, hidden, False)


def _state_space(config: ModelConfiguration) -> dict[str, Shape]:
    hidden, heads = config.get("hidden_size"), config.get("mamba_n_heads")
    width = int(config.get("mamba_expand") * hidden)
    fed = width + 2 * config.get("mamba_n_groups") * config.get("mamba_d_state")
    shapes: dict[str, Shape] = {f"mamba.{name}": (heads,) for name in ("A_log", "D", "dt_bias")}
    shapes |= {"mamba.norm.weight": (width,)}
    shapes["mamba.conv1d.weight"] = (fed, 1, config.get("mamba_d_conv"))
    shapes |= {"mamba.conv1d.bias": (fed,)} if config.get("mamba_conv_bias") else {}
    shapes |= _linear("mamba.in_proj", hidden, width + fed + heads, False)
    return shapes | _linear("mamba.out_proj", width, hidden, False)


def _convolution(config: ModelConfiguration) -> dict[str, Shape]:
    hidden = config.get("hidden_size")
    shapes = _linear("conv.in_proj", hidden, 3 * hidden, False)
    shapes |= _linear("conv.out_proj", hidden, hidden, False)
    return shapes | {"conv.conv.weight": (hidden, 1, config.get("conv_L_cache"))}


def _network(config: ModelConfiguration) -> dict[str, Shape]:
    hidden, inner = config.get("hidden_size"), config.inner_size
    names, modules = gate_up(config), config.family.modules
    has_bias = bool(getattr(config, "mlp_bias", getattr(config, "use_bias", False)))
    shapes = _linear(f"{modules.network}.{modules.down}", inner, hidden, has_bias)
    for part in names:
        width = 2 * inner // len(names) if config.family.is_gated else inner
        shapes |= _linear(f"{modules.network}.{part}", hidden, width, has_bias)
    return shapes


def gate_up(config: ModelConfiguration) -> tuple[str, ...]:
    """Names of a network's modules before the last."""
    return ("gate_proj", "up_proj") if getattr(config, APART, False) else config.family.gate_up


def _experts(config: ModelConfiguration) -> dict[str, Shape]:
    has_bias = config.family.tensors.has_sinks
    hidden, count = config.get("hidden_size"), config.expert_count
    inner = getattr(config, "moe_intermediate_size", config.get("intermediate_size"))
    at = config.family.modules.mixture
    shapes = _linear(f"{at}{config.family.router}", hidden, count, has_bias)
    for part, sizes in {
        "gate": (hidden, inner),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }.items():
        own = _linear(f"{at}experts.{part}", *sizes, has_bias)
        shapes |= {name: (count, *shape) for name, shape in own.items()}
    name = config.family.modules.choice_bias
    if name is not None and getattr(config, "use_expert_bias", True):
        shapes[at + name] = (1, count) if "moe_statics" in name else (count,)
    return shapes | _shared_expert(config)


def _shared_expert(config: ModelConfiguration) -> dict[str, Shape]:
    """The expert that all rows go to; several of them are one that is as much wider."""
    hidden, shapes = config.get("hidden_size"), dict[str, Shape]()
    width = getattr(config, "shared_expert_intermediate_size", None)
    if width is not None:
        shapes |= _linear("mlp.shared_expert_gate", hidden, 1, False)
    else:
        count = getattr(config, "n_shared_experts", getattr(config, "moe_num_shared_experts", 0))
        width = count * getattr(config, "moe_intermediate_size", 0)
    module = f"mlp.{config.family.modules.shared}"
    for part in ("gate_proj", "up_proj") if width else ():
        shapes |= _linear(f"{module}.{part}", hidden, width, False)
    return shapes | (_linear(f"{module}.down_proj", width, hidden, False) if width else {})


def _is_mixture(config: ModelConfiguration, layer: int) -> bool:
    """True if a layer has experts; some may have a network in their place."""
    dense = layer in (getattr(config, "mlp_only_layers", None) or ())
    every = getattr(config, "decoder_sparse_step", getattr(config, "moe_layer_interval", 1))
    names = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    first = next((getattr(config, name) for name in names if hasattr(config, name)), 0)
    within = first <= layer <= getattr(config, "moe_layer_end_index", layer)
    return config.expert_count > 0 and (layer + 1) % every == 0 and within and not dense


def _norms(config: ModelConfiguration) -> dict[str, Shape]:
    norms, family = config.family.norms, config.family
    mlp = None if family.is_parallel(config) else norms.mlp
    shapes = dict[str, Shape]()
    for name in (norms.attention, mlp, norms.after_attention, norms.after_mlp):
        shapes |= {} if name is None else _norm(name, config)
    return shapes


def _norm(module: str, config: ModelConfiguration) -> dict[str, Shape]:
    kinds = ("weight", "bias") if config.family.tensors.biases_norms else ("weight",)
    return {f"{module}.{kind}": (config.get("hidden_size"),) for kind in kinds}


def _linear(module: str, inputs: int, outputs: int, has_bias: bool) -> dict[str, Shape]:
    weight = {f"{module}.weight": (outputs, inputs)}
    return weight | ({f"{module}.bias": (outputs,)} if has_bias else {})
