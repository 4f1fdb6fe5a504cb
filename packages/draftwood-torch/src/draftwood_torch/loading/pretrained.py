"""Models as Transformers reads them from a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

from draftwood.loading.folders import require_all_used, understood
from draftwood.models.shapes import other_shape
from draftwood_torch.loading.quiet import quiet_transformers
from draftwood_torch.loading.skeleton import auto_class, skeleton
from draftwood_torch.models.reading import why_other_shape


def read_folder(
    folder: Path, dtype: str, place: Any, split: Mapping[str, Any] | None, unpacked: bool
) -> tuple[Any, Any]:
    """Read the model and the tokenizer of a folder; see ``Backend.read``."""
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    more = dict(split or {})
    if unpacked:
        more["quantization_config"] = Mxfp4Config(dequantize=True)
    with quiet_transformers(), understood(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        config = AutoConfig.from_pretrained(folder)
        told = getattr(config, "quantization_config", None)
        if str(place) == "cpu" and isinstance(told, dict) and told.get("quant_method") == "fp8":
            # as Transformers does by itself where there is no GPU
            more["quantization_config"] = FineGrainedFP8Config(**{**told, "dequantize": True})
        answer: Any = auto_class(config).from_pretrained(
            folder, dtype=wanted, output_loading_info=True, ignore_mismatched_sizes=True, **more
        )
    model, report = answer
    _require_whole(model, report, folder)
    model = model if split else model.to(torch.device(str(place)))
    return model.eval(), tokenizer


def _require_whole(model: Any, report: Mapping[str, Any], folder: Path) -> None:
    """Raise ValueError where Transformers would only warn, and draw weights by chance."""
    for name, stored, by_configuration in sorted(report["mismatched_keys"]):
        raise ValueError(
            f"the model in {folder} cannot be loaded: its tensor"
            f" {other_shape(name, stored, by_configuration)}; fetch it again"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        cure = "fetch it again, or name one that was saved as a causal language model"
        raise ValueError(
            f"the model in {folder} lacks {len(missing)} weights, the first is {missing[0]}; {cure}"
        )
    modules = dict(model.named_modules())
    linear = {name for name, each in modules.items() if type(each) is torch.nn.Linear}
    lists = {
        name: len(each) for name, each in modules.items() if isinstance(each, torch.nn.ModuleList)
    }
    extra = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None) or 0
    require_all_used(folder, report["unexpected_keys"], linear, lists, extra)


def why_other_model(folder: Path) -> str | None:
    """Say why the native path does not run the model in a folder; reads no weights.

    Raises:
        ValueError: for a configuration that Transformers does not understand.
    """
    return why_other_shape(skeleton_of_folder(folder))


def skeleton_of_folder(folder: Path) -> Any:
    """The model in a folder without weights; raises as ``why_other_model``."""
    with quiet_transformers(), understood(folder):
        return skeleton(AutoConfig.from_pretrained(folder))


def torch_device(device: Any) -> torch.device:
    """Resolve a device: by default CUDA if there is one, else the CPU.

    Raises:
        ValueError: for one that cannot be had.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    # torch has no type of its own for this
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(":")[0]
        raise ValueError(
            f"there is no device {str(device)!r} to run on ({reason}); leave device out to take the"
            " best"
        ) from None
