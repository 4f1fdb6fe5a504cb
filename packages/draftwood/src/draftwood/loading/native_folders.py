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
from draftwood.loading.layouts import layout_of
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
from draftwood.storage.weights import settings_or_none

if TYPE_CHECKING:
    from draftwood.loading.adapters import LoraAdapter
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


@dataclass(frozen=True)
class FolderSettings:
    """Content of a folder's config.json.

    Attributes:
        told: all but how matrices are stored.
        in_mxfp4: whether experts are stored in MXFP4.
    """

    told: dict[str, Any]
    in_mxfp4: bool


def settings_of(folder: Path) -> FolderSettings:
    """Read a config.json; experts in MXFP4 are known by their tensors.

    Raises:
        UnknownConfigurationError: for one that is none.
    """
    told = settings_or_none(folder / CONFIG)
    if told is None:
        raise UnknownConfigurationError("its config.json cannot be read")
    if (layout := layout_of(told)) is not None:
        return FolderSettings(layout.told(told), in_mxfp4=False)
    if not mxfp4.says_mxfp4(told):
        return FolderSettings(told, in_mxfp4=False)
    del told["quantization_config"]
    return FolderSettings(told | {"dtype": "bfloat16"}, in_mxfp4=True)


def generation_of(folder: Path) -> dict[str, Any] | None:
    """Read a generation_config.json; None without one."""
    return settings_or_none(folder / GENERATION)


def why_not(folder: Path, dtype: str | None = None) -> str | None:
    """Say why the model in a folder is not read here; None if it is. Reads no weights.

    Args:
        dtype: of its floats; None for the one that it has.
    """
    try:
        _stored(folder, dtype)
    except UnknownConfigurationError as error:
        return str(error)
    return None


def read_folder(
    folder: Path, dtype: str | None = None, adapter: "LoraAdapter | None" = None
) -> NativeFolder:
    """Read the model in a folder; its matrices stay mapped until they are packed.

    Args:
        dtype: as ``why_not``.
        adapter: added to its weights.

    Raises:
        UnknownConfigurationError: where ``why_not`` says why, and for tensors that are no floats.
        ValueError: for tensors that are missing, of other shapes than the configuration asks for,
            or without a place in the model.
        MemoryError: where the weights do not fit into memory.
    """
    stored = _stored(folder, dtype)
    in_memory = None if stored.in_mxfp4 else stored.dtype
    require_memory(weight_bytes(folder, in_memory), str(folder))
    told = _untied(stored)
    tensors = StoredTensors(stored.arrays, config := ModelConfiguration(told), stored.dtype)
    _require_all(folder, tensors, tensor_shapes(config))
    given = tensors if adapter is None else adapter.over(tensors, config)
    try:
        decoder = describe(told, given)
    except UnknownConfigurationError:
        raise
    except ValueError as error:
        raise ValueError(
            f"the model in {folder} cannot be loaded: {error}; fetch it again"
        ) from None
    _require_all_used(folder, tensors)
    generation = generation_of(folder)
    model = DescribedModel(decoder, config, end_tokens_of(told, generation), stored.dtype, Cpu())
    return NativeFolder({**told, "dtype": stored.dtype}, generation, tensors, model)


@dataclass(frozen=True, eq=False)
class _Stored:
    """A model's settings and tensors as its folder has them, the latter mapped.

    Attributes:
        dtype: that its floats are to have.
        in_mxfp4: as ``FolderSettings`` has it, as is ``told``.
    """

    told: dict[str, Any]
    in_mxfp4: bool
    config: ModelConfiguration
    arrays: dict[str, np.ndarray]
    dtype: FloatType


def _stored(folder: Path, dtype: str | None) -> _Stored:
    settings = settings_of(folder)
    told, config = settings.told, ModelConfiguration(settings.told)
    if not weight_files(folder):
        raise UnknownConfigurationError("its weights are not in model.safetensors")
    arrays = _renamed(folder, mapped(folder))
    if strange := sorted(name for name, each in arrays.items() if not holds_floats(name, each)):
        raise UnknownConfigurationError(f"its tensor {strange[0]} holds no floats")
    wanted = stored_type(told if dtype in (None, "auto") else {"dtype": dtype}, arrays)
    if settings.in_mxfp4 and dtype is not None:
        raise UnknownConfigurationError("its experts in MXFP4 are wanted as floats")
    if config.architecture == "GptOssForCausalLM" and wanted == "float16":
        raise UnknownConfigurationError("in float16 it keeps its norms in float32")
    return _Stored(told, settings.in_mxfp4, config, arrays, wanted)


def _renamed(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors by the names of the decoder that a folder's layout stands for."""
    layout = layout_of(settings_or_none(folder / CONFIG) or {})
    if layout is None:
        return arrays
    return {layout.name(name): each for name, each in arrays.items()}


def _untied(stored: _Stored) -> dict[str, Any]:
    """Believe a file that has an output head of its own, whatever its configuration says."""
    told, config = stored.told, stored.config
    if not config.get("tie_word_embeddings"):
        return told
    found = StoredTensors(stored.arrays, config).arrays
    names = ("lm_head.weight", f"{config.family.prefix}embed_tokens.weight")
    head, embedding = map(found.get, names)
    if head is None or embedding is None or np.array_equal(head, embedding):
        return told
    if "text_config" in told:
        raise UnknownConfigurationError("its output head is not its embedding")
    return told | {"tie_word_embeddings": False}


def _require_all(folder: Path, tensors: StoredTensors, shapes: Mapping[str, Shape]) -> None:
    missing = sorted(name for name in shapes if name not in tensors)
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


def of_transformers(read: "Pretrained") -> NativeFolder:
    """Describe a model that Transformers read.

    Raises:
        ValueError: for a model of another shape.
    """
    model = DescribedModel.of(read.model)
    told = json.loads(read.model.config.to_json_string()) | {"dtype": model.dtype}
    arrays = backend("a model of Transformers").arrays(read.model)
    return NativeFolder(told, {"eos_token_id": sorted(model.end_tokens)}, arrays, model)
