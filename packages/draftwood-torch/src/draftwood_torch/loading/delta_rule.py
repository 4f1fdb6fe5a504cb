"""Layout of the gated delta rule in GGUF files of Qwen3.5."""

import re
from typing import Any

import numpy as np
from jaxtyping import Float
from transformers.modeling_gguf_pytorch_utils import GGUFTensor, TensorProcessor

TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<rest>.+)")
STEP = re.compile(r"\blayers\.(\d+)\.linear_attn\.dt_bias$")
HEAD_ROWS = ("ssm_beta.weight", "ssm_alpha.weight", "ssm_a", "ssm_dt.bias")
"""Tensors with a row for each head of values."""

Numbers = Float[np.ndarray, "..."]


class DeltaRuleTensors(TensorProcessor):
    """Undoes what llama.cpp's converter does to Qwen3.5.

    It puts heads of values that share a key far apart, takes the decay's exponential, adds 1 to
    norms but that of the rule itself, and keeps layers that foretell tokens behind the text's,
    which ``gguf_places`` takes.
    """

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: dict[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        if found := STEP.search(qual_name + hf_name):
            gguf_to_hf_name_map[f"blk.{found[1]}.ssm_dt.bias"] = qual_name + hf_name

    def process(self, weights: Numbers, name: str, **_: Any) -> GGUFTensor:
        found = TENSOR.fullmatch(name)
        if found is not None and int(found["layer"]) >= self.config["num_hidden_layers"]:
            return GGUFTensor(weights, None, {})  # type: ignore[arg-type]
        rest = name if found is None else found["rest"]
        if rest.endswith("norm.weight") and rest != "ssm_norm.weight":
            weights = weights - np.float32(1)
        return GGUFTensor(self._laid_out(rest, weights), name, {})

    def _laid_out(self, name: str, values: Numbers) -> Numbers:
        size, before = self.config["linear_value_head_dim"], self._keys
        if name == "ssm_out.weight":
            return self._joined(values.T, size).T
        if name == "attn_gate.weight":
            return self._joined(values, size)
        if name in HEAD_ROWS:
            values = self._joined(values, 1)
            if name == "ssm_a" and not (values < 0).all():
                raise ValueError("its ssm_a holds a number that is no decay, 0 or above")
            return np.log(-values) if name == "ssm_a" else values
        if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
            values = np.concatenate([values[:before], self._joined(values[before:], size)])
            return values[:, None] if name == "ssm_conv1d.weight" else values
        return values

    @property
    def _keys(self) -> int:
        """Rows of queries and keys, before those of values."""
        return 2 * self.config["linear_num_key_heads"] * self.config["linear_key_head_dim"]

    def _joined(self, rows: Numbers, size: int) -> Numbers:
        """Put heads of values that share a key side by side; each has so many rows."""
        keys = self.config["linear_num_key_heads"]
        heads = rows.reshape(-1, keys, size, *rows.shape[1:])
        return heads.swapaxes(0, 1).reshape(rows.shape)
