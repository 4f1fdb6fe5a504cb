"""A class of configurations of Transformers, and rules that fill in what a file leaves out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Rule = Callable[[Any], list[str]]
FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, by what their attention sees."""
TILED = "linear_value_heads_tiled"
"""Key of a configuration whose tensors have heads of values as GGUF files have them."""
APART = "joined_tensors_apart"
"""Key of one whose tensors lie apart, as GGUF files have them, that Transformers has in one."""
_OF_STATES = (FULL, "linear_attention")


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
        older: other names of keys in files, with those of the values.
        complete: does what else the class does to its values when they are all there.
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
    older: dict[str, str] = field(default_factory=dict)
    complete: Callable[[Any], None] = lambda config: None

    @property
    def rotates_parts(self) -> bool:
        """True if its models can rotate a part of each head."""
        return self.partial is not None or "rotary_dim" in self.values


def kinds_of(config: Any, is_sliding: Callable[[int], bool]) -> list[str]:
    return [SLIDING if is_sliding(layer) else FULL for layer in range(config.num_hidden_layers)]


def late_windows(config: Any) -> list[str]:
    """Windows in the upper layers (Qwen)."""
    window, first = config.sliding_window, config.max_window_layers
    return kinds_of(config, lambda layer: window is not None and layer >= first)


def early_windows(config: Any) -> list[str]:
    """Windows in every second of the lower layers (Qwen2's mixtures)."""
    most, is_on = config.max_window_layers, config.use_sliding_window
    return kinds_of(config, lambda layer: bool(is_on and (layer + 1) % 2 and layer < most))


def windows_but_every(usual: int) -> Rule:
    """Windows in all but each so-manieth layer."""

    def rule(config: Any) -> list[str]:
        every = getattr(config, "sliding_window_pattern", usual)
        return kinds_of(config, lambda layer: bool((layer + 1) % every))

    return rule


def states_but_every(config: Any) -> list[str]:
    """Running states in all but each so-manieth layer (Qwen3.5)."""
    every = getattr(config, "full_attention_interval", 4)
    return [_OF_STATES[bool((i + 1) % every)] for i in range(config.num_hidden_layers)]


def convolutions_but_told(config: Any) -> list[str]:
    """Convolutions in all layers but those that are named (LFM2)."""
    layers = range(config.num_hidden_layers)
    told = getattr(config, "full_attn_idxs", None)
    named = layers if told is None else told
    return ["full_attention" if layer in named else "conv" for layer in layers]


def alternating_windows(config: Any) -> list[str]:
    return kinds_of(config, lambda layer: bool((layer + 1) % 2))


def windows_without_rotary(config: Any) -> list[str]:
    """Windows in layers without rotary positions (SmolLM3)."""
    is_on = config.use_sliding_window and config.sliding_window is not None
    return kinds_of(config, lambda layer: bool(is_on and not config.no_rope_layers[layer]))


def values_of(sizes: tuple[int, ...], **further: Any) -> dict[str, Any]:
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
    has_epsilon = any("_eps" in name for name in further)
    epsilon = {} if has_epsilon else {"rms_norm_eps": 1e-6}
    return dict(zip(names, sizes, strict=True)) | usual | act | epsilon | further


def without_network(values: dict[str, Any]) -> dict[str, Any]:
    """Values of a class whose layers all have experts."""
    return {name: each for name, each in values.items() if name != "intermediate_size"}
