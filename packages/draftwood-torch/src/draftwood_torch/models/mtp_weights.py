"""Look for layers for multi-token prediction (MTP) beside the weights of a model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROJECTIONS = {"eh_proj", "fc", "input_proj"}
"""Names of the projection of a state and a token, of which each layer has one."""


def has_mtp(hf_model: "PreTrainedModel") -> bool:
    """True if such layers lie in the folder that a model was read from; reads no weights."""
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


def names_of_mtp(hf_model: "PreTrainedModel") -> str:
    """Regular expression of their names: below ``mtp``, or behind the decoder's last layer."""
    behind = hf_model.config.get_text_config().num_hidden_layers
    return rf"(^|\.)mtp\.|(^|\.)layers\.{behind}\."
