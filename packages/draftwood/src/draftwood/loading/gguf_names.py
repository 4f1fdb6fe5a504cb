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
from draftwood.models.decoder import tiled

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "token_embd_norm": "model.embedding_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "output": "lm_head",
}
USUAL = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_exps": "mlp.experts.gate",
    "ffn_up_exps": "mlp.experts.up",
    "ffn_down_exps": "mlp.experts.down",
}
"""Modules of a layer, and those of Transformers."""
NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
NORMS_AROUND = {**NORMS_BEHIND, "ffn_norm": "pre_feedforward_layernorm"}
DELTA_RULE = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}
LFM2 = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
PARTS = ("gate", "up", "down")
SHARED = {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in PARTS}
CHOICE = "exp_probs_b.bias"
"""Bias by which experts are chosen; it is no part of their shares."""
OTHERS: dict[str, dict[str, str]] = {
    "gemma2": NORMS_AROUND,
    "gemma3": NORMS_AROUND,
    "gemma4": {
        **NORMS_AROUND,
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "ffn_gate_inp": "router.proj",
        **{f"ffn_{part}_exps": f"experts.{part}" for part in PARTS},
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        **{f"post_ffw_norm_{way}": f"post_feedforward_layernorm_{way}" for way in (1, 2)},
    },
    "olmo2": NORMS_BEHIND,
    "exaone4": NORMS_BEHIND,
    "glm4": {
        **{
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        "ffn_up": "mlp.gate_up_proj",
    },
    "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "lfm2": LFM2,
    "lfm2moe": {
        **LFM2,
        "ffn_gate_inp": "feed_forward.gate",
        **{f"ffn_{part}_exps": f"feed_forward.experts.{part}" for part in PARTS},
        CHOICE: "feed_forward.expert_bias",
    },
    "qwen35": DELTA_RULE,
    "qwen35moe": DELTA_RULE,
    "qwen3next": {
        **DELTA_RULE,
        "ssm_in": "linear_attn.in_proj_qkvz",
        "ssm_ba": "linear_attn.in_proj_ba",
    },
    "ernie4_5-moe": {**SHARED, CHOICE: "mlp.gate.moe_statics.e_score_correction_bias"},
    "glm4moe": {
        **SHARED,
        "post_attention_norm": "post_attention_layernorm",
        CHOICE: "mlp.gate.e_score_correction_bias",
    },
    "minimax-m2": {CHOICE: "mlp.e_score_correction_bias"},
    "gpt-oss": {
        "ffn_gate_inp": "mlp.router",
        "post_attention_norm": "post_attention_layernorm",
    },
}
"""Modules that an architecture names otherwise, and tensors that are no module's weight."""
WHOLE = {
    "attn_sinks.weight": "self_attn.sinks",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
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
OF_VALUE_HEADS = ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias")
"""Tensors with a row for each head of values of a recurrence."""
GRANITE = ("granitemoe", "granitehybrid")
"""Architectures whose modules gguf_granite.py names."""


@dataclass(frozen=True)
class Layout:
    """Names and layouts of one file's tensors.

    Attributes:
        names: modules of a layer, and those of Transformers.
        heads: modules whose rows lie in pairs, by the file's names, and their heads.
        norm_shift: what the file's norms have beyond those of Transformers.
        layers: of the text; the one behind them is for multi-token prediction.
        keyed: layers with keys of their own; those behind them take the keys of others.
        states: of recurrences, whose heads of values the file has in another order; None without.
        joined: heads of keys whose rates and steps the file has in one tensor, and the model in
            two; 0 without.
    """

    names: Mapping[str, str]
    heads: Mapping[str, int]
    norm_shift: float
    layers: int
    keyed: int
    states: "StateHeads | None"
    joined: int = 0

    @classmethod
    def of(cls, architecture: str, config: ModelConfiguration) -> "Layout":
        """The layout of an architecture, by llama.cpp's name, with these settings."""
        heads = {
            "attn_q": config.get("num_attention_heads"),
            "attn_k": config.get("num_key_value_heads"),
        }
        are_apart = architecture == "qwen3next" and getattr(config, APART, False)
        return cls(
            {**USUAL, **_others(architecture, config)},
            heads if (ARCHITECTURES[architecture].layout or architecture) == "llama" else {},
            config.family.norm_shift,
            layers := config.get("num_hidden_layers"),
            layers - (getattr(config, "num_kv_shared_layers", None) or 0),
            StateHeads.of(config),
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

    def side_by_side(self, name: str, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Values that are laid out, with heads of values that share a key next to each other."""
        found = TENSOR.fullmatch(name)
        if self.states is None or found is None:
            return values
        return self.states.side_by_side(found["rest"], values)


@dataclass(frozen=True)
class StateHeads:
    """Heads of a recurrence: files have those of values that share a key far apart.

    Attributes:
        keys: heads of keys.
        key_dim, value_dim: of a head.
    """

    keys: int
    key_dim: int
    value_dim: int

    @classmethod
    def of(cls, config: ModelConfiguration) -> "StateHeads | None":
        """The heads of a configuration; None for one whose heads lie as Transformers' do."""
        if not getattr(config, TILED, False):
            return None
        names = ("linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim")
        return cls(*map(config.get, names))

    def side_by_side(self, name: str, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """See ``Layout``."""
        if name == "ssm_out.weight":
            return self._joined(values.T, self.value_dim).T
        if name == "attn_gate.weight":
            return self._joined(values, self.value_dim)
        if name in OF_VALUE_HEADS:
            return self._joined(values, 1)
        if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
            before = 2 * self.keys * self.key_dim
            return np.concatenate([values[:before], self._joined(values[before:], self.value_dim)])
        return values

    def _joined(self, rows: Float[np.ndarray, "..."], size: int) -> Float[np.ndarray, "..."]:
        return rows[tiled(self.keys, len(rows) // size, size).argsort()]


def as_stored(architecture: str, names: Container[str]) -> dict[str, Any]:
    """Settings of the model whose tensors lie as a file has them, where Transformers' do not.

    Args:
        names: of the file's tensors.
    """
    if architecture in ("qwen35", "qwen35moe"):
        return {TILED: True}
    is_apart = architecture == "qwen3next" and "blk.0.ssm_in.weight" not in names
    return {APART: True} if is_apart or architecture in GRANITE else {}


def _others(architecture: str, config: ModelConfiguration) -> dict[str, str]:
    if architecture not in GRANITE:
        return OTHERS.get(architecture, {})
    from draftwood.loading.gguf_granite import names_of

    return names_of(config)


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
