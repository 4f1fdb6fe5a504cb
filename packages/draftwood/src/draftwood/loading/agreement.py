"""Compare the configuration in a folder with its weights.

Transformers builds the configured model, fills missing tensors with random numbers, and ignores
unknown ones.
"""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from draftwood.storage.safetensors import read_header
from draftwood.storage.weights import WEIGHTS

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTH = ("hidden_size", "n_embd", "d_model")
PACKED = 4
"""Most entries of a matrix that one byte packs."""

REST = "small.safetensors"
"""File of the small tensors of a model whose matrices lie elsewhere."""

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model."
MERGE = "merge it into its model (merge_and_unload of PEFT, then save_pretrained) and name that"


def require_agreement(folder: Path) -> None:
    """Compare a configuration with the headers of the weights; nothing is built.

    Raises:
        ValueError: for more layers or larger tables than the files can hold, and for weights that
            are quantised in a way that Transformers does not know.
    """
    config = _read(folder / "config.json")
    _require_known(folder, config.get("quantization_config"))
    files = list(folder.glob("*.safetensors"))
    if files and not any(_others(folder)) and not (folder / REST).is_file():
        told = config.get("text_config")
        _require_sizes(folder, told if isinstance(told, dict) else config, files)


def require_all_used(model: Any, unused: Iterable[str], folder: Path) -> None:
    """Raise ValueError if a file has unused tensors that would change the model's output.

    These are layers beyond those of the configuration, and what lies beside the weight of a linear
    layer, as biases and the scales of quantised weights do.

    Args:
        unused: names of tensors that the model has no place for.
    """
    for name in sorted(unused):
        above, _, own = name.rpartition(".")
        if type(_part(model, above)) is nn.Linear:
            raise ValueError(
                f"the model in {folder} has {name}, and by its config.json there is no {own}; put"
                " back the config.json that belongs to the weights"
            )
        count = _layers_above(model, name)
        if count is not None:
            raise ValueError(
                f"the model in {folder} has {name}, and its config.json asks for {count} layers;"
                " put back the config.json that belongs to the weights"
            )


def _layers_above(model: Any, name: str) -> int | None:
    """Number of layers in the list that a tensor's name indexes beyond its end; None if it does
    not.
    """
    extra = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None) or 0
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdecimal():
            found = _part(model, ".".join(parts[:place]))
            if isinstance(found, nn.ModuleList) and int(part) >= len(found) + extra:
                return len(found)
    return None


def _part(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def require_no_adapter(folder: Path) -> None:
    """Raise ValueError for a PEFT adapter that Transformers would leave out."""
    if not (folder / ADAPTER).is_file():
        return
    own = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    own = [path for path in own if not path.name.startswith(ADAPTER_WEIGHTS)]
    if not own or not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is a PEFT adapter without a model; {MERGE}")
    if importlib.util.find_spec("peft") is None:
        raise ValueError(
            f"{folder} has a PEFT adapter beside its model, and PEFT is not installed; install it"
            f" with 'pip install peft', or {MERGE}"
        )


def _read(path: Path) -> dict[str, Any]:
    """Read a configuration; empty if it cannot be read, which Transformers reports."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _others(folder: Path) -> Iterable[Path]:
    """Weight files without a header of sizes."""
    kinds = (path for pattern in WEIGHTS for path in folder.glob(pattern))
    return (path for path in kinds if path.suffix != ".safetensors")


def _require_known(folder: Path, told: object) -> None:
    if told is None:
        return
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KNOWN

    method = told.get("quant_method") if isinstance(told, Mapping) else None
    older = isinstance(told, Mapping) and any(f"load_in_{bits}bit" in told for bits in (4, 8))
    if not older and (not isinstance(method, str) or method not in KNOWN):
        raise ValueError(
            f"the weights in {folder} are quantised as {method or told!r:.60} by its config.json,"
            " which this Transformers does not know; take the model in floats or as a GGUF file, or"
            " update Transformers"
        )


def _require_sizes(folder: Path, config: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Raise ValueError for more weights than files of these sizes can hold."""
    tensors = {name for path in files for name in read_header(path)}
    holds = PACKED * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    layers, width = (_first(config, names) for names in (LAYERS, WIDTH))
    if layers > len(tensors):
        raise ValueError(
            f"{folder / 'config.json'} asks for {layers} layers, and the weights are"
            f" {len(tensors)} tensors; put back the config.json that belongs to the weights"
        )
    for name in ("vocab_size", "intermediate_size", "ffn_dim", "n_inner", *WIDTH):
        if _first(config, (name,)) * max(width, 1) > holds:
            raise ValueError(
                f"{folder / 'config.json'} says {name} {config[name]}, which is more than the"
                " weights hold; put back the config.json that belongs to the weights"
            )


def _first(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """Size under the first of its names that is present; 0 if none is, or it is no size."""
    found = next((config[name] for name in names if name in config), 0)
    return found if isinstance(found, int) else 0
