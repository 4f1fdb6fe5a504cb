"""Look for layers for multi-token prediction (MTP) beside the weights of a model."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROJECTIONS = {"eh_proj", "fc", "input_proj"}
"""Names of the projection of a state and a token, of which each layer has one."""


def has_mtp(hf_model: "PreTrainedModel") -> bool:
    """True if such layers lie where a model was read from, in its folder or its GGUF file; reads no
    weights.
    """
    if in_file := getattr(hf_model, "mtp_tensors", None):
        return any("eh_proj" in name for name in in_file)
    folder = Path(hf_model.config.name_or_path or "/")
    wanted = re.compile(names_of_mtp(hf_model))
    if not (folder / "config.json").is_file():
        return False
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found = filter(wanted.search, file.keys())
            if any(PROJECTIONS.intersection(name.split(".")) for name in found):
                return True
    return False


IN_FILES = "mtp."
"""Prefix of tensors of such layers among those of a GGUF file's model."""


def tensors_of_mtp(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of such layers among those of a model, by their names in Transformers' layers."""
    return {
        name.replace(IN_FILES, "", 1): each for name, each in tensors.items() if IN_FILES in name
    }


def names_of_mtp(hf_model: "PreTrainedModel") -> str:
    """Regular expression of their names: below ``mtp``, or behind the decoder's last layer."""
    behind = hf_model.config.get_text_config().num_hidden_layers
    return rf"(^|\.)mtp\.|(^|\.)layers\.{behind}\."
