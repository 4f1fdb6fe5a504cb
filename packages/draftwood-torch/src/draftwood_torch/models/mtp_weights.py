"""Look for layers for multi-token prediction (MTP) beside the weights of a model."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from safetensors import SafetensorError, safe_open
from transformers import modeling_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROJECTIONS = {"eh_proj", "fc", "input_proj"}
"""Names of the projection of a state and a token, of which each layer has one."""


def has_mtp(hf_model: "PreTrainedModel") -> bool:
    """True if such layers lie in the folder that a model was read from; reads no weights."""
    if not hasattr(modeling_layers, "MtpModel"):  # an older Transformers
        return False
    if hf_model not in _KNOWN:
        wanted = re.compile(names_of_mtp(hf_model))
        found = filter(wanted.search, _names_in(Path(hf_model.config.name_or_path or "/")))
        _KNOWN[hf_model] = any(PROJECTIONS.intersection(name.split(".")) for name in found)
    return _KNOWN[hf_model]


_KNOWN: "WeakKeyDictionary[PreTrainedModel, bool]" = WeakKeyDictionary()


def _names_in(folder: Path) -> Iterable[str]:
    """Names of the tensors of a model's folder; none where they cannot be read."""
    try:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            return json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            return file.keys()
    except (OSError, ValueError, LookupError, SafetensorError):
        return ()


def names_of_mtp(hf_model: "PreTrainedModel") -> str:
    """Regular expression of their names: below ``mtp``, or behind the decoder's last layer."""
    behind = hf_model.config.get_text_config().num_hidden_layers
    return rf"(^|\.)mtp\.|(^|\.)layers\.{behind}\."
