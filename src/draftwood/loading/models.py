"""From a name to a model that is ready to run, on the fastest path that can run it."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from draftwood.interfaces.model import Model
from draftwood.loading import hub, mxfp4, packed
from draftwood.loading.gguf_blocks import open_blocks, require_unchanged
from draftwood.loading.origin import quantisation
from draftwood.loading.skeleton import tokenizer_of
from draftwood.models.decoder import why_not_lean
from draftwood.models.lean import LeanModel
from draftwood.models.native import NativeModel, Products, has_int8, require_int8
from draftwood.models.transformers import TransformersModel
from draftwood.native.library import CompilerError, available
from draftwood.storage.progress import progress, quiet_transformers


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
        dtype: ``int8``, ``int4`` or a type of floats; None takes int8 on CPUs for weights that come
            from a quantised GGUF file, as llama.cpp does in effect, and for models whose experts
            are in MXFP4, which they stay in; else the type the weights were saved in. In ``int8``
            and ``float32`` the weights of such a file stay what they are on CPUs; rows are rounded
            to 8 bits, or not at all. Other weights are packed in ``int8`` and ``int4`` once, see
            ``packed``.
        device: None takes CUDA where there is one, else the CPU.

    Raises:
        ValueError: for unknown names and types, and for int8 and int4 where they cannot be had; the
            message says why.
        MemoryError: where the weights certainly do not fit into memory.
    """
    place, integers = hub.device_of(device), hub.integers_of(dtype)
    if integers is not None:
        require_int8(place, integers)
    in_place = _in_place(name, dtype, place)
    if in_place is not None:
        return in_place
    folder = hub.folder_of(name, dtype)
    quantised = mxfp4.is_mxfp4(folder) or quantisation(folder) is not None
    usual = dtype is None and has_int8(place) and quantised
    if integers is not None or usual:
        packing = packed.packing(folder)
        if packing.why_not is None:
            return _packed(name, folder, integers or "int8", packing)
        if integers is not None:
            raise ValueError(_on_native_path(integers, packing.why_not))
    hf_model = hub.read_folder(name, folder, dtype, place)
    label = str(hf_model.model.dtype).removeprefix("torch.")
    return LoadedModel(model_for(hf_model.model), hf_model.tokenizer, folder, label)


def _in_place(
    name: str, dtype: str | torch.dtype | None, place: torch.device
) -> LoadedModel | None:
    """The model of a GGUF file with the blocks that the file has; None where that cannot be."""
    is_float = dtype in ("float32", torch.float32)
    if place.type != "cpu" or not hub.as_stored(dtype):
        return None
    if not (available() if is_float else has_int8(place)):
        return None
    folder = hub.blocks_of(name)
    if folder is None:
        return None
    label, halves = ("float32", None) if is_float else ("int8", torch.bfloat16)

    def run() -> NativeModel:
        model = NativeModel(open_blocks(folder), label, halves)
        require_unchanged(folder)
        return model

    return _opened(name, folder, folder, label, run)


def _packed(name: str, folder: Path, products: Products, packing: packed.Packing) -> LoadedModel:
    """The model in a folder with matrices that are packed once, if there is room for them."""

    def load() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        if mxfp4.is_mxfp4(folder):
            with progress(f"loading {name}"), quiet_transformers():
                return mxfp4.open_mxfp4(folder), tokenizer_of(folder)
        loaded = hub.read_folder(name, folder, products, torch.device("cpu"))
        return loaded.model, loaded.tokenizer

    if packing.size(products) > packed.limit():
        hf_model, tokenizer = load()
        return LoadedModel(NativeModel(hf_model, products), tokenizer, folder, products)
    kept = packed.packed_folder(folder, products, load)
    return _opened(name, folder, kept, products, lambda: packed.open_packed(kept))


def _opened(
    name: str, folder: Path, described: Path, dtype: str, run: Callable[[], Model]
) -> LoadedModel:
    """A model of a folder that is run from what another describes, which has the tokenizer."""
    with progress(f"loading {name}"), quiet_transformers(), ThreadPoolExecutor(1) as pool:
        # a large vocabulary takes as long as packing the matrices
        tokenizer = pool.submit(tokenizer_of, described)
        return LoadedModel(run(), tokenizer.result(), folder, dtype)


def model_for(hf_model: PreTrainedModel, integers: Products | None = None) -> Model:
    """The fastest way to run a Transformers model.

    Those of the ``FAMILIES`` run in C++ on CPUs and lean elsewhere, others in the general way.

    Raises:
        ValueError: for products of integers on other models or without a compiler, and for models
            that cannot run trees.
    """
    reason = why_not_lean(hf_model)
    if reason is not None and integers is not None:
        raise ValueError(_on_native_path(integers, reason))
    if reason is not None:
        return TransformersModel(hf_model)
    if integers is not None:
        return NativeModel(hf_model, integers)
    if hf_model.device.type != "cpu":
        return LeanModel(hf_model)
    try:
        return NativeModel(hf_model)
    except CompilerError as error:
        warnings.warn(f"decoding goes on slower than it could: {error}", stacklevel=2)
        return LeanModel(hf_model)


def _on_native_path(products: Products, reason: str) -> str:
    return (
        f"{products} runs on the native path only, and {reason}; leave dtype out, or take bfloat16"
    )
