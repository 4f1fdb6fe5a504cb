"""Configurations of the native families, read from what a config.json says.

``ModelConfiguration`` answers as Transformers' classes do: it knows what a file leaves out, older
names of rotary parameters, and which layers see a window. A file that asks for something else
raises ``UnknownConfigurationError``, and Transformers may read it.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np

from draftwood.models.configuration_class import FULL, SLIDING, ConfigurationClass
from draftwood.models.configuration_defaults import CLASSES
from draftwood.models.families import FAMILIES
from draftwood.models.family import ACTIVATIONS, Family
from draftwood.models.rotary import is_number, rotary_of, why_unknown

RENAMED = {"attention": FULL, "mamba": "linear_attention"}
SCALED = ("llama3", "yarn", "longrope")
"""Scalings that go by the length of the first training texts."""
OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Keys of rotary positions by which images differ from texts (Qwen3.5)."""
REFUSED = ("per_layer_config", "quantization_config", "is_encoder_decoder")
"""Keys that change a model in ways that are not known here, unless they say nothing."""
SAME = ("num_experts", "num_local_experts")
"""Two names of one number."""
OF_SOME_CLASSES = (
    *("attention_bias", "mlp_bias", "use_qkv_bias", "layer_types", *SAME),
    *("moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step", "use_expert_bias"),
    *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "rotary_dim"),
    *("first_k_dense_replace", "num_dense_layers", "n_shared_experts", "moe_num_shared_experts"),
    "shared_expert_intermediate_size",
)
"""Keys that say nothing in files of classes without them."""


class UnknownConfigurationError(ValueError):
    """A configuration that asks for something that this reader does not know; says what."""


class ModelConfiguration:
    """A configuration of a model of one of the ``FAMILIES``, of its text part.

    Every key is an attribute, as in Transformers: those of the file, and the defaults of the class.

    Args:
        told: the whole content of a config.json.

    Attributes:
        family: see ``FAMILIES``.
        architecture: its name there.
        rotates_parts: whether the class can rotate a part of each head.
        rope_parameters: with all that Transformers adds; by kinds of layers where they differ.
        windows: positions that each layer's attention reaches back, itself included; None for all.

    Raises:
        UnknownConfigurationError: see above.
    """

    rope_parameters: dict[str, Any]

    def __init__(self, told: Mapping[str, Any]) -> None:
        try:
            self._read(told)
        except UnknownConfigurationError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise UnknownConfigurationError(
                f"its config.json has a value of a wrong kind: {error}"
            ) from error

    def _read(self, told: Mapping[str, Any]) -> None:
        kind = _class_of(told)
        text = told["text_config"] if kind.part else told
        text_kind = classes(kind.part)[kind.part] if kind.part else kind
        values = {**text_kind.values, **_renamed(text_kind, text)}
        if kind.part:
            values["tie_word_embeddings"] = _tied(told, values)
        _require_kinds(text_kind, values)
        vars(self).update(values)
        self.architecture = kind.architecture
        self.family: Family = FAMILIES[kind.architecture]
        self.rotates_parts = text_kind.rotates_parts
        _complete(self, text_kind)
        self.windows = _windows(self, text_kind)
        self.rope_parameters = _rope_parameters(self, text_kind, text)
        _require_readable(self)

    @property
    def head_size(self) -> int:
        """Dimensions of a head of attention."""
        told = getattr(self, "head_dim", None)
        return told or self.get("hidden_size") // self.get("num_attention_heads")

    @cached_property
    def heads(self) -> list[tuple[int, int]]:
        """Heads of keys and values, and dimensions of a head, of each layer."""
        if not self.family.is_unlike:
            return [(self.get("num_key_value_heads"), self.head_size) for _ in _layers(self)]
        from draftwood.models.unlike_heads import heads_of

        return [heads_of(self, layer) for layer in _layers(self)]

    @property
    def inner_size(self) -> int:
        """Entries within a gated network; of an expert where all layers have experts."""
        told = self.family.inner_size(self) or getattr(self, "intermediate_size", None)
        return told or self.get("moe_intermediate_size")

    @property
    def epsilon(self) -> Any:
        """Number that norms add to the square that they divide by."""
        return self.get(self.family.epsilon)

    @property
    def activation(self) -> Any:
        """Name of the network's activation, as ``ACTIVATIONS`` has it if it is known."""
        return self.family.fixed_activation or self.get(self.family.activation)

    @property
    def expert_count(self) -> int:
        """Number of experts; 0 for none."""
        found = (getattr(self, name, None) for name in SAME)
        return next((count for count in found if count is not None), 0)

    @property
    def rotary_names(self) -> list[str]:
        """The tables of rotary frequencies that layers go by, each once."""
        named = [self.family.rotary(self, layer) for layer in _layers(self)]
        return list(dict.fromkeys(name for name in named if name is not None))

    def why_other_shape(self) -> str | None:
        """Say why its models are of another shape than Llama's; None if they are not."""
        reason, act = self.family.why_not(self), self.activation
        if reason is None and act not in ACTIVATIONS:
            reason = f"its activation is {act}, not one of {', '.join(ACTIVATIONS)}"
        if reason is None and not (is_number(self.epsilon) and self.epsilon >= 0):
            reason = f"the epsilon of its norms is {self.epsilon!r}"
        return reason or _why_not_scales(self)

    def has_state(self, layer: int) -> bool:
        """True if a layer is one of the family's ``states``."""
        states = self.family.states
        return states is not None and self.get("layer_types")[layer] == states.kind

    def get(self, name: str) -> Any:
        """A value by its key."""
        return getattr(self, name)


def why_not_native(told: Mapping[str, Any]) -> str | None:
    """Say why a configuration cannot be read here; None if it can."""
    try:
        ModelConfiguration(told)
    except UnknownConfigurationError as error:
        return str(error)
    return None


def end_tokens_of(told: Mapping[str, Any], generation: Mapping[str, Any] | None) -> frozenset[int]:
    """Tokens with which a model ends its text.

    Args:
        told: the content of its config.json.
        generation: that of its generation_config.json; None where it has none.
    """
    if generation is None:
        ends = told.get("eos_token_id")
        text = told.get("text_config")
        ends = text.get("eos_token_id") if ends is None and isinstance(text, Mapping) else ends
    else:
        ends = generation.get("eos_token_id")
    return frozenset([ends] if isinstance(ends, int) else ends or ())


def classes(wanted: str = "") -> Mapping[str, ConfigurationClass]:
    """Classes by Transformers' ``model_type``: all, or those where one of this name would be."""
    if wanted in CLASSES:
        return CLASSES
    from draftwood.models.configuration_newer import NEWER

    return CLASSES | NEWER


def _class_of(told: Mapping[str, Any]) -> ConfigurationClass:
    name_of = str(told.get("model_type"))
    known = classes(name_of)
    kind = known.get(name_of)
    if kind is None or not kind.architecture:
        raise UnknownConfigurationError(
            f"its model_type is {told.get('model_type')!r}, not one of"
            f" {', '.join(name for name, each in known.items() if each.architecture)}"
        )
    text = told.get("text_config") if kind.part else told
    if not isinstance(text, Mapping) or text.get("model_type", kind.usual_part or kind.part) != (
        kind.part or told["model_type"]
    ):
        raise UnknownConfigurationError(f"its text_config is not one of {kind.part}")
    for name in REFUSED:
        if (told.get(name) or text.get(name)) and name not in known[kind.part or name_of].values:
            raise UnknownConfigurationError(f"its config.json has {name}")
    if not (told.get("is_causal", True) and text.get("is_causal", True)):
        raise UnknownConfigurationError("it sees what comes after a token")
    return kind


def _renamed(kind: ConfigurationClass, text: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a file, with the class's own name where there are two of one thing."""
    values = {name: deepcopy(each) for name, each in text.items() if _says(name, each)}
    own = next((name for name in SAME if name in kind.values), None)
    for name in SAME:
        if own is not None and name != own and name in values:
            values[own] = values.pop(name)
    for old, new in kind.older.items():
        if old in values:
            values[new] = values.pop(old)
    is_off = values.get("sliding_window") == 0 and kind.architecture == "Qwen2MoeForCausalLM"
    if is_off:  # as it says that there is none
        values["sliding_window"] = None
    foreign = [name for name in OF_SOME_CLASSES if name not in kind.values]
    return {name: each for name, each in values.items() if name not in foreign}


def _says(name: str, value: object) -> bool:
    """Leave out a null that classes take for nothing."""
    return value is not None or name != "rope_parameters"


def _tied(told: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Look for one answer in a model with a text part."""
    found = told.get("tie_word_embeddings", True)
    if bool(found) != bool(values["tie_word_embeddings"]):
        raise UnknownConfigurationError("its two tie_word_embeddings contradict each other")
    return bool(found)


def _require_kinds(kind: ConfigurationClass, values: Mapping[str, Any]) -> None:
    """Refuse values of a wrong kind, which Transformers explains."""
    for name, is_right in _CHECKS.items():
        is_read, value = name in kind.values or is_right is _is_count_or_none, values.get(name)
        if is_read and not (is_right(value) or value is kind.values.get(name)):
            raise UnknownConfigurationError(f"its {name} is {value!r}")


def _is_count(value: object) -> bool:
    """True for a whole number above 0 that the library's 32 bits hold."""
    return type(value) is int and 0 < value < 1 << 31


def _is_count_or_none(value: object) -> bool:
    return value is None or _is_count(value)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), _is_count),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), _is_count),
    **dict.fromkeys(("max_position_embeddings", "moe_intermediate_size"), _is_count),
    "decoder_sparse_step": _is_count,
    **dict.fromkeys(("shared_expert_intermediate_size", "conv_L_cache"), _is_count),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), _is_count),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), _is_count),
    **dict.fromkeys(("linear_conv_kernel_dim", "mamba_n_heads", "mamba_n_groups"), _is_count),
    **dict.fromkeys(("mamba_d_state", "mamba_d_conv", "shared_intermediate_size"), _is_count),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "sliding_window"), _is_count_or_none),
    "norm_topk_prob": lambda value: isinstance(value, bool),
    "mlp_only_layers": lambda value: value is None or isinstance(value, list),
}
"""Tests of a value's kind, by its key: where the class has the key, and for counts that may be None
everywhere.
"""


def _complete(config: Any, kind: ConfigurationClass) -> None:
    """Do what the class does to its own values when they are all there."""
    if config.num_key_value_heads is None:
        config.num_key_value_heads = config.num_attention_heads
    if "use_sliding_window" in kind.values and "no_rope_layers" not in kind.values:
        config.sliding_window = config.sliding_window if config.use_sliding_window else None
    if config.architecture == "GemmaForCausalLM" and config.hidden_act == "gelu":
        config.hidden_act = "gelu_pytorch_tanh"  # which it means
    if kind.values.get("no_rope_layers", 0) is None and config.no_rope_layers is None:
        every = config.no_rope_layer_interval
        config.no_rope_layers = [int((i + 1) % every != 0) for i in _layers(config)]
    if getattr(config, "layer_types", None) is None and kind.layer_types is not None:
        config.layer_types = kind.layer_types(config)
    kind.complete(config)
    told = getattr(config, "layer_types", None)
    if told is not None:
        config.layer_types = [RENAMED.get(each, each) for each in told]
        states = config.family.states
        known = {FULL, SLIDING if states is None else states.kind}
        if set(config.layer_types) - known or len(told) != config.num_hidden_layers:
            raise UnknownConfigurationError(f"its layer_types are {told}")


def _layers(config: Any) -> range:
    return range(config.num_hidden_layers)


def _windows(config: Any, kind: ConfigurationClass) -> list[int | None]:
    """The window of each layer; classes that make none ignore what a file says of them."""
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not kind.makes_windows:
        return [None for _ in _layers(config)]
    return [window if types is None or types[i] == SLIDING else None for i in _layers(config)]


def _rope_parameters(
    config: Any, kind: ConfigurationClass, text: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of rotary positions under their newer names, and with their defaults."""
    told = text.get("rope_parameters")
    told = deepcopy(dict(config.rope_parameters or {}) if told is None else dict(told))
    scaling = text.get("rope_scaling")
    if kind.local_theta is not None:
        return _by_kinds_of_layers(config, kind, text, told)
    told = deepcopy(dict(scaling)) if scaling else told
    for name in OF_IMAGES if config.family.states else ():
        told.pop(name, None)
    if set(told) & {FULL, SLIDING}:
        raise UnknownConfigurationError("its parameters of rotary positions differ by layers")
    told.setdefault("rope_theta", text.get("rope_theta", kind.theta))
    turned = getattr(config, "rotary_dim", None)
    usual = kind.partial if turned is None else turned / config.head_size
    if config.architecture != "BambaForCausalLM":  # which knows better than its file
        usual = text.get("partial_rotary_factor", usual)
    if (partial := usual) is not None:
        told.setdefault("partial_rotary_factor", partial)
    told.setdefault("rope_type", told.get("type", "default"))
    if config.architecture == "Phi3ForCausalLM" and told["rope_type"] in ("su", "yarn"):
        told["rope_type"] = "longrope"
    if told["rope_type"] in SCALED:
        before = getattr(config, "original_max_position_embeddings", None)
        usual = told.get("original_max_position_embeddings", config.max_position_embeddings)
        told["original_max_position_embeddings"] = usual if before is None else before
    return told


def _by_kinds_of_layers(
    config: Any, kind: ConfigurationClass, text: Mapping[str, Any], told: dict[str, Any]
) -> dict[str, Any]:
    """The same where layers with a window go by a table of their own (Gemma 3)."""
    if set(told) - {FULL, SLIDING} or "partial_rotary_factor" in text:
        raise UnknownConfigurationError("its parameters of rotary positions are for all layers")
    bases = {FULL: ("rope_theta", kind.theta), SLIDING: ("rope_local_base_freq", kind.local_theta)}
    found = dict[str, dict[str, Any]]()
    for layers, (name, usual) in bases.items():
        own: dict[str, Any] = {"rope_type": "default"}
        own = own if told.get(layers) is None else {**told[layers]}
        # an older "type" says nothing beside the "rope_type" that is there
        own |= (text.get("rope_scaling") or {}) if layers == FULL else {}
        own.setdefault("rope_theta", text.get(name, usual))
        own.setdefault("rope_type", own.get("type", "default"))
        if own["rope_type"] in SCALED:
            own.setdefault("original_max_position_embeddings", config.max_position_embeddings)
        if own["rope_type"] == "yarn":
            own["truncate"] = True  # Transformers looks for it elsewhere
        found[layers] = own
    return found


def rotary_parameters(config: ModelConfiguration, name: str) -> dict[str, Any]:
    """The parameters of one of the tables, which a family names."""
    told = config.rope_parameters
    return told[name.removesuffix("_")] if name else told


def _require_readable(config: ModelConfiguration) -> None:
    """Refuse what the native path, or this reader, does not know."""
    reason = config.why_other_shape()
    if reason is None and config.head_size % 2:
        reason = f"its heads have {config.head_size} dimensions"
    heads, keys = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if reason is None and heads % keys:
        reason = f"its {heads} heads do not share {keys} keys evenly"
    count = config.expert_count
    used = config.get("num_experts_per_tok") if count else 1
    are_counts = _is_count(used) and (count == 0 or _is_count(count))
    if reason is None and not (are_counts and used <= max(count, 1)):
        reason = f"each token goes to {used} of {count} experts"
    for name in config.rotary_names:
        reason = reason or _why_not_rotary(config, rotary_parameters(config, name))
    if reason is not None:
        raise UnknownConfigurationError(reason)


def _why_not_scales(config: ModelConfiguration) -> str | None:
    try:
        scales = config.family.scales(config)
    except (TypeError, ZeroDivisionError):
        return "one of its factors is 0 or no number"
    bounds = (scales.score_cap, scales.logit_cap, scales.gate_limit, scales.growth_every)
    factors = (scales.embedding, scales.inputs, scales.residual, scales.logits, scales.gate_slope)
    factors += (scales.query_growth,)
    told = [each for each in (scales.attention, *bounds) if each is not None]
    if not all(map(is_number, (*factors, *told))):
        return "one of its factors is 0 or no number"
    odd = next((each for each in bounds if each is not None and each <= 0), None)
    return None if odd is None else f"one of its bounds is {odd}"


def _why_not_rotary(config: ModelConfiguration, parameters: Mapping[str, Any]) -> str | None:
    reason, kind = why_unknown(parameters), parameters["rope_type"]
    if reason is not None:
        return reason
    partial = 1.0 if kind == "proportional" else parameters.get("partial_rotary_factor", 1.0)
    if partial != 1.0 and not (0 < partial < 1 and config.rotates_parts):
        return f"its partial_rotary_factor is {partial}"
    if config.architecture == "Phi3ForCausalLM" and kind not in ("default", "longrope"):
        return f"its rotary positions are scaled as {kind!r}"
    pairs = int(config.head_size * partial) // 2
    lengths = [len(each) for each in _factors(parameters)]
    if {*lengths} - {pairs}:
        return f"it has {lengths} factors for {pairs} rotary frequencies"
    with np.errstate(all="ignore"):
        table = rotary_of(parameters, config.head_size, config.get("max_position_embeddings"))
    is_whole = np.isfinite(table.frequencies).all() and is_number(table.scale)
    return None if is_whole else "its rotary frequencies are no finite numbers"


def _factors(parameters: Mapping[str, Any]) -> Sequence[Sequence[float]]:
    names = ("short_factor", "long_factor")
    return [parameters[name] for name in names if isinstance(parameters.get(name), list)]
