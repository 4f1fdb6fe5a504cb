"""Names and layouts of a GGUF file's tensors in the families that run natively.

llama.cpp's converter renames the tensors of a model, puts the rows of Llama's queries and keys in
pairs, and adds to Gemma's norms the 1 that belongs to them.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.loading.gguf_settings import ARCHITECTURES
from draftwood.loading.names import MTP
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.configuration_class import APART, TILED
from draftwood.models.shapes import gate_up

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "token_embd_norm": "model.embedding_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "output": "lm_head",
}
PARTS = ("gate", "up", "down")
STATES: dict[str, dict[str, str]] = {
    "linear_attn": {
        **{"attn_qkv": "in_proj_qkv", "attn_gate": "in_proj_z", "ssm_in": "in_proj_qkvz"},
        **{"ssm_alpha": "in_proj_a", "ssm_beta": "in_proj_b", "ssm_ba": "in_proj_ba"},
    },
    "mamba": {"ssm_in": "in_proj", "ssm_d": "D"},
    "conv": {f"shortconv.{part}": part for part in ("conv", "in_proj", "out_proj")},
}
"""Tensors of a running state within its module, by the module's name."""
OF_STATES = {
    **{"ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj"},
    **{"ssm_a": "A_log", "ssm_dt.bias": "dt_bias"},
}
"""The same of all modules that have such tensors."""
BEFORE_NETWORK = ("seed_oss", "qwen35", "qwen35moe", "qwen3next", "glm4moe", "gpt-oss")
"""Architectures that name the norm of what a network reads by the attention before it."""
CHOICE = "exp_probs_b.bias"
"""Bias by which experts are chosen; it is no part of their shares."""
UNLIKE = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    **{f"post_ffw_norm_{way}": f"post_feedforward_layernorm_{way}" for way in (1, 2)},
}
"""Modules of layers that differ from each other."""
WHOLE = {
    "attn_sinks.weight": "self_attn.sinks",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
"""Tensors of a layer that are no module's weight."""
JOINED = re.compile(r"(blk\.\d+\.ffn_)gate_up(_exps\.weight)")
"""Names of tensors that hold the gates of each expert, and below them what they gate."""
RATES = re.compile(r"(blk\.\d+\.)ssm_ba\.weight")
"""Names of tensors that hold the rates and the steps of each head of keys."""
OF_KEYS = ("attn_k", "attn_v", "attn_k_norm")
TENSOR = re.compile(
    r"(blk\.(?P<layer>\d+)\.)?(?P<rest>ffn_(gate_inp|down_exps)\.scale|"
    r"(?P<module>(shortconv\.)?\w+)(\.(?P<kind>weight|bias))?)"
)
FORETELLING = re.compile(r"blk\.(?P<layer>\d+)\.nextn\.(?P<module>\w+)\.weight")
AROUND_MTP = {
    "eh_proj": f"{MTP}fc",
    "enorm": f"{MTP}pre_fc_norm_embedding",
    "hnorm": f"{MTP}pre_fc_norm_hidden",
    "shared_head_norm": f"{MTP}norm",
}
GRANITE = ("granitemoe", "granitehybrid")
"""Architectures whose files have gates of networks, and what they gate, in two tensors."""


@dataclass(frozen=True)
class Layout:
    """Names and layouts of one file's tensors.

    Attributes:
        names: modules of a layer, and those of Transformers.
        heads: modules whose rows lie in pairs, by the file's names, and their heads.
        norm_shift: what the file's norms have beyond those of Transformers.
        layers: of the text; the one behind them is for multi-token prediction.
        keyed: layers with keys of their own; those behind them take the keys of others.
        joined: heads of keys whose rates and steps the file has in one tensor, and the model in
            two; 0 without.
    """

    names: Mapping[str, str]
    heads: Mapping[str, int]
    norm_shift: float
    layers: int
    keyed: int
    joined: int = 0

    @classmethod
    def of(cls, architecture: str, config: ModelConfiguration) -> "Layout":
        """The layout of an architecture, by llama.cpp's name, with these settings."""
        heads = {
            "attn_q": config.get("num_attention_heads"),
            "attn_k": config.get("num_key_value_heads"),
        }
        are_apart = architecture == "qwen3next" and getattr(config, APART, False)
        names = names_of(config)
        if architecture in BEFORE_NETWORK:
            names["post_attention_norm"] = names["ffn_norm"]
        return cls(
            names,
            heads if ARCHITECTURES[architecture].layout == "llama" else {},
            config.family.norm_shift,
            layers := config.get("num_hidden_layers"),
            layers - (getattr(config, "num_kv_shared_layers", None) or 0),
            config.get("linear_num_key_heads") if are_apart else 0,
        )

    def is_behind(self, name: str) -> bool:
        """True for a tensor of the layers that foretell tokens behind the text's."""
        found = TENSOR.fullmatch(name) or FORETELLING.fullmatch(name)
        return (
            found is not None and found["layer"] is not None and int(found["layer"]) >= self.layers
        )

    def is_spare(self, name: str) -> bool:
        """True for a tensor of keys in a layer that takes those of another: files may have them."""
        found = TENSOR.fullmatch(name)
        return (
            found is not None
            and found["module"] in OF_KEYS
            and self.keyed <= int(found["layer"] or 0) < self.layers
        )

    def separate(self, name: str) -> list[str]:
        """Names of the tensors of the model that a file's tensor holds; most are one."""
        if self.is_spare(name):
            return []
        found = None if not self.joined else RATES.fullmatch(name)
        if found is not None:
            return [f"{found[1]}ssm_{part}.weight" for part in ("beta", "alpha")]
        return separate(name)

    def half(self, values: Float[np.ndarray, "..."], which: int) -> Float[np.ndarray, "..."]:
        """One of two tensors that take turns in one, expert by expert or head by head of keys."""
        groups, width = len(values) if values.ndim == 3 else self.joined, values.shape[-1]
        found = values.reshape(groups, 2, -1, width)[:, which]
        return np.ascontiguousarray(found if values.ndim == 3 else found.reshape(-1, width))

    def name_of(self, name: str) -> str | None:
        """The model's name of a tensor; None for one that no family has."""
        around, found = FORETELLING.fullmatch(name), TENSOR.fullmatch(name)
        if around is not None and int(around["layer"]) == self.layers:
            own = AROUND_MTP.get(around["module"])
            return None if own is None else f"{own}.weight"
        if found is None:
            return None
        layer, module, kind = found["layer"], found["module"], found["kind"]
        if layer is None:
            return f"{TOP[module]}.{kind}" if module in TOP else None
        own = self.names.get(found["rest"], WHOLE.get(found["rest"]))
        if own is None and module in self.names:
            own = f"{self.names[module]}.{kind}"
        if own is None or int(layer) > self.layers:
            return None
        return (
            f"{MTP}layers.0.{own}" if int(layer) == self.layers else f"model.layers.{layer}.{own}"
        )

    def heads_of(self, name: str) -> int | None:
        """Heads of a tensor whose rows lie in pairs; None where its rows are in order."""
        found = TENSOR.fullmatch(name)
        return self.heads.get(found["module"]) if found and found["layer"] else None

    def laid_out(self, name: str, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The values of a tensor, by the file's name, as the model has them, but for the order of
        heads of values.

        Raises:
            ValueError: for a decay that is none.
        """
        found = TENSOR.fullmatch(name)
        rest = name if found is None else found["rest"]
        if self.norm_shift and _is_norm(name) and rest != "ssm_norm.weight":
            return values - np.float32(self.norm_shift)
        if rest == "ssm_a" and not (values < 0).all():
            raise ValueError("its ssm_a holds a number that is no decay, 0 or above")
        if rest == "ssm_a":
            return np.log(-values).reshape(-1)
        if rest in ("ssm_d", "ssm_norm.weight"):
            return values.reshape(-1)
        if rest in ("ssm_conv1d.weight", "shortconv.conv.weight"):
            return values[:, None]
        is_row = rest == CHOICE and "moe_statics" in self.names.get(CHOICE, "")
        if is_row or rest == "ffn_gate_inp_shexp.weight":
            return values.reshape(1, -1)
        heads = self.heads_of(name)
        return values if heads is None else values[halves(len(values), heads)]


def as_stored(architecture: str, names: Container[str]) -> dict[str, Any]:
    """Settings of the model whose tensors lie as a file has them, where Transformers' do not.

    Args:
        names: of the file's tensors.
    """
    if architecture in ("qwen35", "qwen35moe"):
        return {TILED: True}
    is_apart = architecture == "qwen3next" and "blk.0.ssm_in.weight" not in names
    return {APART: True} if is_apart or architecture in GRANITE else {}


def names_of(config: ModelConfiguration) -> dict[str, str]:
    """Modules of a layer by a file's names, as the model's family has them."""
    family, modules, norms = config.family, config.family.modules, config.family.norms
    attention, mixture = family.query_key_value, modules.mixture
    inputs = ("attn_q", "attn_k", "attn_v") if len(attention) == 3 else ("attn_qkv",)
    within = {
        **dict(zip(inputs, attention, strict=True)),
        **{"attn_q_norm": modules.query_norm, "attn_k_norm": modules.key_norm},
        "attn_output": modules.output,
    }
    found: dict[str, str | None] = {
        **{"attn_norm": norms.attention, "post_attention_norm": norms.after_attention},
        **{"ffn_norm": norms.mlp, "post_ffw_norm": norms.after_mlp},
        **{name: f"self_attn.{own}" for name, own in within.items()},
        "ffn_gate_inp": f"{mixture}{family.router}",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        CHOICE: modules.choice_bias and f"{mixture}{modules.choice_bias}",
        **{f"ffn_{part}_exps": f"{mixture}experts.{part}" for part in PARTS},
        **{f"ffn_{part}_shexp": f"mlp.{modules.shared}.{part}_proj" for part in PARTS},
        **_network(config),
        **(UNLIKE if family.is_unlike else {}),
    }
    if family.states is not None:
        module = family.states.module
        found |= {name: f"{module}.{own}" for name, own in (OF_STATES | STATES[module]).items()}
    return {name: own for name, own in found.items() if own is not None}


def _network(config: ModelConfiguration) -> dict[str, str]:
    """Modules of the network, which files take for an expert where it stands beside some."""
    modules, names = config.family.modules, gate_up(config)
    ending = "_shexp" if modules.shares_network and config.expert_count else ""
    parts = {**dict(zip(PARTS[2 - len(names) :], names, strict=False)), "down": modules.down}
    return {f"ffn_{part}{ending}": f"{modules.network}.{own}" for part, own in parts.items()}


def separate(name: str) -> list[str]:
    """Names of the tensors that a file joins in the one of this name; most are alone."""
    found = JOINED.fullmatch(name)
    return [name] if found is None else [f"{found[1]}{part}{found[2]}" for part in ("gate", "up")]


def _is_norm(name: str) -> bool:
    around = FORETELLING.fullmatch(name)
    return "norm.weight" in name if around is None else around["module"] != "eh_proj"


def halves(rows: int, heads: int) -> Int[np.ndarray, " rows"]:
    """The stored row of each row, where the two that are turned together lie side by side.

    Of a head with the rows 0 1 2 3 these are 0 2 1 3: the first of all pairs, then the second.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(rows)
