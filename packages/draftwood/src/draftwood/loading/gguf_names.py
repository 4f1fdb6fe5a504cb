"""Names and layouts of a GGUF file's tensors in the families that run natively.

llama.cpp's converter renames the tensors of a model, puts the rows of Llama's queries and keys in
pairs, and adds to Gemma's norms the 1 that belongs to them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.loading.gguf_settings import ARCHITECTURES
from draftwood.models.configuration import ModelConfiguration

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
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
OTHERS: dict[str, dict[str, str]] = {
    "gemma2": NORMS_AROUND,
    "gemma3": NORMS_AROUND,
    "olmo2": NORMS_BEHIND,
    "exaone4": NORMS_BEHIND,
    "glm4": {
        **{
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        },
        "ffn_up": "mlp.gate_up_proj",
    },
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gpt-oss": {
        "ffn_gate_inp": "mlp.router",
        "post_attention_norm": "post_attention_layernorm",
    },
}
"""Modules that an architecture names otherwise."""
WHOLE = {"attn_sinks.weight": "self_attn.sinks"}
"""Tensors of a layer that are no module's weight."""
TENSOR = re.compile(r"(blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


@dataclass(frozen=True)
class Layout:
    """Names and layouts of one file's tensors.

    Attributes:
        names: modules of a layer, and those of Transformers.
        heads: modules whose rows lie in pairs, by the file's names, and their heads.
        norm_shift: what the file's norms have beyond those of Transformers.
    """

    names: Mapping[str, str]
    heads: Mapping[str, int]
    norm_shift: float

    @classmethod
    def of(cls, architecture: str, config: ModelConfiguration) -> "Layout":
        """The layout of an architecture, by llama.cpp's name, with these settings."""
        heads = {
            "attn_q": config.get("num_attention_heads"),
            "attn_k": config.get("num_key_value_heads"),
        }
        return cls(
            {**USUAL, **OTHERS.get(architecture, {})},
            heads if (ARCHITECTURES[architecture].layout or architecture) == "llama" else {},
            config.family.norm_shift,
        )

    def name_of(self, name: str) -> str | None:
        """The model's name of a tensor; None for one that no family has."""
        found = TENSOR.fullmatch(name)
        if found is None:
            return None
        layer, module, kind = found["layer"], found["module"], found["kind"]
        if layer is None:
            return f"{TOP[module]}.{kind}" if module in TOP else None
        own = WHOLE.get(f"{module}.{kind}")
        if own is None and module in self.names:
            own = f"{self.names[module]}.{kind}"
        return None if own is None else f"model.layers.{layer}.{own}"

    def heads_of(self, name: str) -> int | None:
        """Heads of a tensor whose rows lie in pairs; None where its rows are in order."""
        found = TENSOR.fullmatch(name)
        return self.heads.get(found["module"]) if found and found["layer"] else None

    def laid_out(self, name: str, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The values of a tensor, by the file's name, as the model has them."""
        if self.norm_shift and "norm.weight" in name:
            return values - np.float32(self.norm_shift)
        heads = self.heads_of(name)
        return values if heads is None else values[halves(len(values), heads)]


def halves(rows: int, heads: int) -> Int[np.ndarray, " rows"]:
    """The stored row of each row, where the two that are turned together lie side by side.

    Of a head with the rows 0 1 2 3 these are 0 2 1 3: the first of all pairs, then the second.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(rows)
