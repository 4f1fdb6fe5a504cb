"""Folders of safetensors whose models run natively: read without PyTorch and Transformers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood.arrays import FloatType
from draftwood.loading import mxfp4
from draftwood.loading.folders import require_all_used, weight_bytes
from draftwood.loading.tensors import (
    StoredTensors,
    holds_floats,
    mapped,
    stored_type,
    weight_files,
)
from draftwood.models.configuration import (
    ModelConfiguration,
    UnknownConfigurationError,
    end_tokens_of,
)
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.shapes import Shape, tensor_shapes
from draftwood.optional import backend
from draftwood.storage.memory import require_memory

if TYPE_CHECKING:
    from draftwood.loading.hub import Pretrained

CONFIG, GENERATION = "config.json", "generation_config.json"


@dataclass(frozen=True, eq=False)
class NativeFolder:
    """A model as its folder has it.

    Attributes:
        told: the content of its config.json, without what says how matrices are stored.
        generation: of its generation_config.json; None without one.
        tensors: gives its tensors.
        model: what runs.
    """

    told: Mapping[str, Any]
    generation: Mapping[str, Any] | None
    tensors: Callable[[str], Any]
    model: DescribedModel


def told_of(folder: Path) -> dict[str, Any]:
    """Read a config.json; experts in MXFP4 are known by their tensors.

    Raises:
        UnknownConfigurationError: for one that is none.
    """
    told = _read(folder / CONFIG)
    if told is None:
        raise UnknownConfigurationError("its config.json cannot be read")
    if mxfp4.is_mxfp4(folder):
        del told["quantization_config"]
        return told | {"dtype": "bfloat16"}
    return told


def generation_of(folder: Path) -> dict[str, Any] | None:
    """Read a generation_config.json; None without one."""
    return _read(folder / GENERATION)


def why_not(folder: Path, dtype: str | None = None) -> str | None:
    """Say why the model in a folder is not read here; None if it is. Reads no weights.

    Args:
        dtype: of its floats; None for the one that it has.
    """
    try:
        _configuration(folder, dtype)
    except UnknownConfigurationError as error:
        return str(error)
    return None


def read_folder(folder: Path, dtype: str | None = None) -> NativeFolder:
    """Read the model in a folder; its matrices stay mapped until they are packed.

    Args:
        dtype: as ``why_not``.

    Raises:
        UnknownConfigurationError: where ``why_not`` says why, and for tensors that are no floats.
        ValueError: for tensors that are missing, of other shapes than the configuration asks for,
            or without a place in the model.
        MemoryError: where the weights do not fit into memory.
    """
    told, config, arrays, wanted = _configuration(folder, dtype)
    stored = None if mxfp4.is_mxfp4(folder) else wanted
    require_memory(weight_bytes(folder, stored), str(folder))
    told = _untied(told, config, arrays)
    tensors = StoredTensors(arrays, config := ModelConfiguration(told), wanted)
    _require_all(folder, tensors, tensor_shapes(config))
    try:
        decoder = describe(told, tensors)
    except UnknownConfigurationError:
        raise
    except ValueError as error:
        raise ValueError(
            f"the model in {folder} cannot be loaded: {error}; fetch it again"
        ) from None
    _require_all_used(folder, tensors)
    generation = generation_of(folder)
    model = DescribedModel(decoder, config, end_tokens_of(told, generation), wanted, Cpu())
    return NativeFolder({**told, "dtype": wanted}, generation, tensors, model)


def _configuration(
    folder: Path, dtype: str | None
) -> tuple[dict[str, Any], ModelConfiguration, dict[str, np.ndarray], FloatType]:
    told = told_of(folder)
    config = ModelConfiguration(told)
    if not weight_files(folder):
        raise UnknownConfigurationError("its weights are not in model.safetensors")
    arrays = mapped(folder)
    if strange := sorted(name for name, each in arrays.items() if not holds_floats(name, each)):
        raise UnknownConfigurationError(f"its tensor {strange[0]} holds no floats")
    wanted = stored_type(told if dtype in (None, "auto") else {"dtype": dtype}, arrays)
    if mxfp4.is_mxfp4(folder) and dtype is not None:
        raise UnknownConfigurationError("its experts in MXFP4 are wanted as floats")
    if config.architecture == "GptOssForCausalLM" and wanted == "float16":
        raise UnknownConfigurationError("in float16 it keeps its norms in float32")
    return told, config, arrays, wanted


def _untied(
    told: dict[str, Any], config: ModelConfiguration, arrays: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Believe a file that has an output head of its own, whatever its configuration says."""
    if not config.get("tie_word_embeddings"):
        return told
    found = StoredTensors(arrays, config).arrays
    names = ("lm_head.weight", f"{config.family.prefix}embed_tokens.weight")
    head, embedding = map(found.get, names)
    if head is None or embedding is None or np.array_equal(head, embedding):
        return told
    if "text_config" in told:
        raise UnknownConfigurationError("its output head is not its embedding")
    return told | {"tie_word_embeddings": False}


def _require_all(folder: Path, tensors: StoredTensors, shapes: Mapping[str, Shape]) -> None:
    missing = sorted(name for name in shapes if tensors(name) is None)
    if missing:
        raise ValueError(
            f"the model in {folder} lacks {len(missing)} weights, the first is {missing[0]}; fetch"
            " it again, or name one that was saved as a causal language model"
        )


def _require_all_used(folder: Path, tensors: StoredTensors) -> None:
    config = tensors.config
    linear = {
        name.removesuffix(".weight")
        for name, shape in tensor_shapes(config).items()
        if len(shape) > 1 and name.endswith(".weight") and "embed_tokens" not in name
    }
    layers = {f"{config.family.prefix}layers": config.get("num_hidden_layers")}
    extra = getattr(config, "num_nextn_predict_layers", None) or 0
    unused = [name for name in tensors.unused if name != "lm_head.weight"]
    require_all_used(folder, unused, linear, layers, extra)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def of_transformers(read: "Pretrained") -> NativeFolder:
    """Describe a model that Transformers read.

    Raises:
        ValueError: for a model of another shape.
    """
    model = DescribedModel.of(read.model)
    told = json.loads(read.model.config.to_json_string()) | {"dtype": model.dtype}
    arrays = backend("a model of Transformers").arrays(read.model)
    return NativeFolder(told, {"eos_token_id": sorted(model.end_tokens)}, arrays, model)
