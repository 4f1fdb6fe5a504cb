"""Layers that differ from each other, and inputs that layers have of their own (Gemma 4): shapes
of their tensors, and how they are read.

Layers that read the keys of others may have networks of twice the width. Experts may stand beside a
layer's network.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from draftwood.models.configuration import ModelConfiguration
from draftwood.models.decoder import (
    AttentionShape,
    Beside,
    LayerInput,
    LayerInputs,
    Norm,
    Projection,
    Rotary,
)
from draftwood.models.shapes import Shape
from draftwood.models.unlike_heads import heads_of, source_of, takes_keys_for_values

Read = Callable[[str], Any]
AROUND_EXPERTS = (
    *("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1"),
    "post_feedforward_layernorm_2",
)
"""Norms of what experts read, of what the network adds, and of what the experts add."""


OF_VALUES = ("self_attn.v_proj.",)
OF_KEYS = ("self_attn.k_proj.", "self_attn.k_norm.", *OF_VALUES)
"""Tensors that layers lack which read keys and values of others."""


def shapes_of_inputs(config: ModelConfiguration) -> dict[str, Shape]:
    """Shapes of the tensors of what is embedded for all layers, by their names."""
    size, hidden = config.get("hidden_size_per_layer_input"), config.get("hidden_size")
    if not size:
        return {}
    width, prefix = size * config.get("num_hidden_layers"), config.family.prefix
    return {
        f"{prefix}embed_tokens_per_layer.weight": (config.get("vocab_size"), width),
        f"{prefix}per_layer_model_projection.weight": (width, hidden),
        f"{prefix}per_layer_projection_norm.weight": (size,),
    }


def of_layer(
    config: ModelConfiguration, layer: int, parts: Mapping[str, Shape]
) -> dict[str, Shape]:
    """Shapes of the tensors of such a layer, by names within it.

    Args:
        parts: those of a usual layer with the same heads.
    """
    size, hidden = config.get("hidden_size_per_layer_input"), config.get("hidden_size")
    is_shared = source_of(config, layer) is not None
    missing = OF_KEYS if is_shared else OF_VALUES if takes_keys_for_values(config, layer) else ()
    shapes = {name: shape for name, shape in parts.items() if not name.startswith(missing)}
    shapes["layer_scalar"] = (1,)
    if is_shared and config.get("use_double_wide_mlp"):
        inner = 2 * config.inner_size
        shapes |= {f"mlp.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        shapes["mlp.down_proj.weight"] = (hidden, inner)
    if size:
        shapes |= {
            "per_layer_input_gate.weight": (size, hidden),
            "per_layer_projection.weight": (hidden, size),
            "post_per_layer_input_norm.weight": (hidden,),
        }
    if count := config.expert_count:
        shapes |= {"router.scale": (hidden,), "router.per_expert_scale": (count,)}
        shapes |= {f"{name}.weight": (hidden,) for name in AROUND_EXPERTS}
    return shapes


def inputs_of(
    config: ModelConfiguration,
    read: Read,
    norm: Callable[[str], Norm],
    projection: Callable[[str], Projection],
) -> LayerInputs | None:
    """Read what layers are given of their own; None where they are given nothing.

    Args:
        read: gives a tensor by its name; ``norm`` and ``projection`` a module.
    """
    size, prefix = config.get("hidden_size_per_layer_input"), config.family.prefix
    if not size:
        return None
    embedding = read(f"{prefix}embed_tokens_per_layer.weight")
    return LayerInputs(
        size=size,
        embedding=embedding,
        embedding_scale=size**0.5,
        projection=projection(f"{prefix}per_layer_model_projection"),
        scale=config.get("hidden_size") ** -0.5,
        norm=norm(f"{prefix}per_layer_projection_norm"),
    )


def parts_of_layer(
    config: ModelConfiguration,
    at: str,
    index: int,
    floats: Read,
    norm: Callable[[str], Norm],
    projection: Callable[[str], Projection],
    rotary: Rotary,
) -> dict[str, Any]:
    """Read what such a layer has besides; fields of ``Layer``.

    Args:
        at: what names of its tensors begin with.
        floats: gives a tensor in float32.
        rotary: table of the layer.
    """
    heads, dim = heads_of(config, index)
    ones = np.ones(dim, np.float32)
    found: dict[str, Any] = {
        "attention": AttentionShape(heads, dim, 2 * len(rotary.frequencies)),
        "source": source_of(config, index),
        "value_norm": Norm(ones, None, ones),
        "scale": float(np.asarray(floats(f"{at}layer_scalar")).reshape(-1)[0]),
    }
    if config.get("hidden_size_per_layer_input"):
        found["input"] = LayerInput(
            projection(f"{at}per_layer_input_gate"),
            projection(f"{at}per_layer_projection"),
            norm(f"{at}post_per_layer_input_norm"),
        )
    if config.expert_count:
        found["beside"] = Beside(*(norm(at + name) for name in AROUND_EXPERTS))
    return found


def router_of(config: ModelConfiguration, at: str, floats: Read) -> dict[str, Any]:
    """Read what chooses experts of such a layer besides the router; fields of ``Experts``."""
    scale = np.asarray(floats(f"{at}router.scale")) * np.float32(config.get("hidden_size") ** -0.5)
    return {"router_norm": scale, "factors": floats(f"{at}router.per_expert_scale")}
