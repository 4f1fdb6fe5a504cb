"""From a name to a model that is ready to run, on the fastest path that can run it."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftwood.interfaces.model import Model
from draftwood.loading import hub
from draftwood.loading.gguf_blocks import open_blocks, tokenizer_of
from draftwood.loading.origin import quantisation
from draftwood.models.decoder import why_not_lean
from draftwood.models.lean import LeanModel
from draftwood.models.native import NativeModel, has_int8
from draftwood.models.transformers import TransformersModel
from draftwood.native.library import CompilerError, available
from draftwood.storage.progress import progress, quiet_transformers

INT8 = "int8"


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its tokenizer, the folder of its weights and how they are multiplied."""

    model: Model
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    dtype: str


def load_model(
    name: str, dtype: str | torch.dtype | None = None, device: str | torch.device | None = None
) -> LoadedModel:
    """The model of this name, lean where it can be.

    It is in 8-bit integers where its weights were quantised anyway.

    Args:
        name: see ``hub.resolve``.
        dtype: ``int8`` or a type of floats; None takes int8 on CPUs for weights that come from a
            quantised GGUF file, as llama.cpp does in effect, else the type the weights were saved
            in. In ``int8`` and ``float32`` the weights of such a file stay what they are on CPUs;
            rows are rounded to 8 bits, or not at all.
        device: None takes CUDA where there is one, else the CPU.

    Raises:
        ValueError: for unknown names and types, and for int8 where it cannot be had; the message
            says why.
    """
    in_place = _in_place(name, dtype, device)
    if in_place is not None:
        return in_place
    floats = None if dtype in (INT8, torch.int8) else dtype
    loaded = hub.load_pretrained(name, dtype=floats, device=device)
    hf_model: PreTrainedModel = loaded.model
    usual = dtype is None and quantisation(loaded.path) is not None and has_int8(hf_model.device)
    int8 = dtype in (INT8, torch.int8) or (usual and why_not_lean(hf_model) is None)
    model = model_for(hf_model, int8)
    label = INT8 if int8 else str(hf_model.dtype).removeprefix("torch.")
    return LoadedModel(model, loaded.tokenizer, loaded.path, label)


def _in_place(
    name: str, dtype: str | torch.dtype | None, device: str | torch.device | None
) -> LoadedModel | None:
    """The model of a GGUF file with the blocks that the file has; None where that cannot be."""
    place = hub.device_of(device)
    is_float = dtype in ("float32", torch.float32)
    if place.type != "cpu" or not hub.as_stored(dtype):
        return None
    if not (available() if is_float else has_int8(place)):
        return None
    folder = hub.blocks_of(name)
    if folder is None:
        return None
    with progress(f"loading {name}"), quiet_transformers(), ThreadPoolExecutor(1) as pool:
        # a large vocabulary takes as long as packing the matrices
        tokenizer = pool.submit(tokenizer_of, folder)
        if is_float:
            model = NativeModel(open_blocks(folder), "float32")
        else:
            model = NativeModel(open_blocks(folder), "int8", torch.bfloat16)
    return LoadedModel(model, tokenizer.result(), folder, "float32" if is_float else INT8)


def model_for(hf_model: PreTrainedModel, int8: bool = False) -> Model:
    """The fastest way to run a Transformers model.

    Those of the ``FAMILIES`` run in C++ on CPUs and lean elsewhere, others in the general way.

    Raises:
        ValueError: for int8 on other models or without a compiler, and for models that cannot run
            trees.
    """
    reason = why_not_lean(hf_model)
    if reason is not None and int8:
        raise ValueError(
            f"int8 runs on the native path only, and {reason}; leave dtype out, or take bfloat16"
        )
    if reason is not None:
        return TransformersModel(hf_model)
    if int8:
        return NativeModel(hf_model, "int8")
    if hf_model.device.type != "cpu":
        return LeanModel(hf_model)
    try:
        return NativeModel(hf_model)
    except CompilerError as error:
        warnings.warn(f"decoding goes on slower than it could: {error}", stacklevel=2)
        return LeanModel(hf_model)
