"""From a name to a model that is ready to run, on the fastest path that can run it."""

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from draftwood.loading import hub
from draftwood.loading.gguf_blocks import (
    files_of,
    has_mtp,
    is_blocks_folder,
    open_blocks,
    open_floats,
    open_general,
    require_unchanged,
    why_general,
)
from draftwood.loading.kept_matrices import KeptBlocks
from draftwood.loading.names import name_of_dtype, require_cache
from draftwood.models.model import Cpu, Device, Model
from draftwood.models.native import NativeModel, has_int8, require_int8
from draftwood.native.formats import INTEGERS, CacheType, Products
from draftwood.native.library import CompilerError, available, library, why_missing
from draftwood.native.matrix import fill
from draftwood.native.threads import survive_forks
from draftwood.optional import backend
from draftwood.storage.atomic import NoRoomError
from draftwood.storage.progress import progress
from draftwood.tokenizer import AnyTokenizer, open_tokenizer

if TYPE_CHECKING:
    from draftwood.loading.adapters import LoraAdapter
    from draftwood.loading.native_folders import NativeFolder

SLOWER = 4
"""Whole requests of 32 tokens in PyTorch took 4.1 to 4.6 times as long as in C++: smollm2-135m as
it is loaded, on one core.
"""
Meanwhile = Callable[[], object]
"""Work to be done while the library lays weights out."""
CACHE_MARK = "-cache"
"""Behind the type of a cache in ``LoadedModel.dtype``."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its tokenizer, and the folder of its weights.

    Attributes:
        dtype: how weights are multiplied; with ``+int8-cache`` behind it where keys and values are
            in 8 bits.
    """

    model: Model
    tokenizer: AnyTokenizer
    folder: Path
    dtype: str


def load_model(
    name: str,
    dtype: Any = None,
    device: Any = None,
    cache: str | None = None,
    processes: int = 1,
    adapter: str | None = None,
) -> LoadedModel:
    """The model of this name, lean where it can be.

    It is in 8-bit integers where its weights were quantised anyway.

    Args:
        name: see ``hub.resolve``.
        dtype: ``int8``, ``int4`` or a type of floats; None takes int8 on CPUs for weights that come
            from a quantised GGUF file, as llama.cpp does in effect, and for models whose experts
            are in MXFP4, which they stay in; else the type the weights were saved in, which is
            bfloat16 for GGUF files that are converted, and float32 for float16 in others. In
            ``int8`` and ``float32`` the weights of a quantised file stay what they are on CPUs;
            rows are rounded to 8 bits, or not at all. Other weights are packed in ``int8`` and
            ``int4`` once, see ``packed``; of models on the general path by each load, and experts
            stay floats.
        device: None takes CUDA where there is one, else the CPU.
        cache: ``int8`` stores keys and values in 8 bits, see ``NativeModel``; None in floats.
        processes: of torchrun that hold the model in parts; see ``models.parallel``.
        adapter: folder or Hugging Face id of one of PEFT, added to the weights. Matrices in the
            blocks of a GGUF file that it changes are packed again, in the type that is told or
            taken.

    Raises:
        ValueError: for unknown names and types, for another model's adapter, and for int8 and int4
            where they cannot be had; the message says why.
        MemoryError: where the weights certainly do not fit into memory.
    """
    survive_forks()  # loading wakes threads already
    if processes > 1:
        return _in_parts(name, processes, dtype, device, cache)
    changes = None
    if adapter is not None:
        from draftwood.loading.adapters import LoraAdapter

        changes = LoraAdapter.read(adapter)
    loaded = _loaded(name, dtype, device, cache, changes)
    if changes is not None:
        vars(loaded.model)["adapter"] = changes.mark
    is_file = is_blocks_folder(loaded.folder)
    if isinstance(loaded.model, NativeModel) and (not is_file or has_mtp(loaded.folder)):
        from draftwood.loading.native_mtp import offer

        offer(loaded.model, loaded.folder)
    return loaded


def _loaded(
    name: str, dtype: Any, device: Any, cache: str | None, adapter: "LoraAdapter | None"
) -> LoadedModel:
    """The model in this process."""
    place, integers = hub.device_of(device), hub.integers_of(dtype)
    stored = _cache_of(cache, place)
    if integers is not None:
        require_int8(place, integers)
    in_place = _in_place(name, dtype, place, stored, adapter)
    if in_place is not None:
        return in_place
    folder = hub.folder_of(name, dtype)
    hub.require_floats(name, folder)
    products = integers or _usual_products(folder, dtype, place)
    floats = None if products else hub.floats_of(dtype)
    reason = _why_not_native(folder, floats, place)
    if products is None and reason is None:
        return _in_floats(name, folder, floats, stored, adapter)
    if products is None:
        return _in_pytorch(name, folder, floats, place, stored, reason, adapter)
    if reason is not None and (other := _why_other_model(name, folder)) is not None:
        return _in_pytorch(name, folder, None, place, stored, other, adapter, integers)
    return _packed(name, folder, products, stored, reason, adapter)


def _why_not_native(folder: Path, floats: str | None, place: Device) -> str | None:
    """Say why the model in a folder needs PyTorch; None if it does not.

    Args:
        floats: type of its floats; None for the one that they have.
    """
    if place.type != "cpu":
        return f"it is to run on {place}"
    if not available():
        return f"draftwood's C++ library is missing: {why_missing()}"
    from draftwood.loading.native_folders import why_not

    return why_not(folder, floats)


def _why_other_model(name: str, folder: Path) -> str | None:
    """Say why a model that this library cannot read is not for the native path; None if it is."""
    return backend(f"the model {name}").why_not_native(folder)


def _usual_products(folder: Path, dtype: object, place: Device) -> Products | None:
    """The products of weights that were quantised before, where no type is told."""
    from draftwood.loading.mxfp4 import is_mxfp4
    from draftwood.loading.origin import quantisation

    quantised = is_mxfp4(folder) or quantisation(folder) is not None
    return "int8" if dtype is None and has_int8(place) and quantised else None


def _in_floats(
    name: str,
    folder: Path,
    floats: str | None,
    cache: CacheType | None,
    adapter: "LoraAdapter | None",
) -> LoadedModel:
    """A model that runs natively, as floats."""
    from draftwood.loading.native_folders import read_folder

    def run(_: Meanwhile) -> NativeModel:
        return NativeModel(read_folder(folder, floats, adapter).model, cache=cache)

    loaded = _opened(name, folder, folder, "", run)
    assert isinstance(loaded.model, NativeModel)
    return replace(loaded, dtype=_label(loaded.model.dtype, cache))


def _in_pytorch(
    name: str,
    folder: Path,
    floats: str | None,
    place: Device,
    cache: CacheType | None,
    reason: str | None,
    adapter: "LoraAdapter | None",
    integers: Products | None = None,
) -> LoadedModel:
    """A model that Transformers reads.

    Args:
        integers: products for which its linear layers are packed; None leaves floats.
    """
    if cache is not None and (other := _why_other_model(name, folder)) is not None:
        raise ValueError(_cache_on_native_path(cache, other))
    runner = backend(f"the model {name} ({reason})")
    read = hub.read_folder(name, folder, floats, place, adapter=adapter)
    if integers is not None:
        runner.pack(read.model, integers)
        return LoadedModel(runner.general_model(read.model), read.tokenizer, folder, integers)
    label = name_of_dtype(read.model.dtype)
    return LoadedModel(
        model_for(read.model, cache=cache), read.tokenizer, folder, _label(label, cache)
    )


def _in_parts(
    name: str,
    processes: int,
    dtype: Any,
    device: Any,
    cache: str | None,
) -> LoadedModel:
    runner = backend("a model in several processes")
    if cache is not None:
        raise ValueError("a model in several processes caches floats; leave cache out")
    model, read = runner.load_parallel(name, processes, dtype, device)
    label = name_of_dtype(read.model.dtype)
    return LoadedModel(model, read.tokenizer, read.path, f"{label}, {processes} processes")


def load_tokenizer(name: str) -> AnyTokenizer:
    """The tokenizer of the model of this name; reads no weights where the files allow it.

    Raises:
        ValueError: for an unknown name.
    """
    return open_tokenizer(hub.blocks_of(name) or hub.described(name))


def _cache_of(cache: str | None, place: Device) -> CacheType | None:
    if cache is None:
        return None
    require_cache(cache)
    found = cast(CacheType, cache)
    if place.type != "cpu":
        raise ValueError(_cache_on_native_path(found, f"that runs on CPUs, not on {place.type}"))
    try:
        library()
    except CompilerError as error:
        raise ValueError(_cache_on_native_path(found, f"here {error}")) from error
    return found


def _label(dtype: str, cache: CacheType | None) -> str:
    return dtype if cache is None else f"{dtype}+{cache}{CACHE_MARK}"


def _in_place(
    name: str, dtype: Any, place: Device, cache: CacheType | None, adapter: "LoraAdapter | None"
) -> LoadedModel | None:
    """The model of a GGUF file that is not converted first; None where that cannot be."""
    if place.type != "cpu" or not available():
        return None
    found = hub.from_blocks(name, dtype)
    if found is None or (found.products in INTEGERS and not has_int8(place)):
        return None
    folder, products, is_packed = found
    if (reason := why_general(folder)) is not None:
        if cache is not None:
            raise ValueError(_cache_on_native_path(cache, reason))

        def run_general(_: Meanwhile) -> Model:
            hf_model = open_general(folder, products, is_packed, adapter)
            return backend(f"the model {name} ({reason})").general_model(hf_model)

        return _opened(name, folder, folder, products, run_general)
    if is_packed:
        return _packed(name, folder, products, cache, None, adapter)

    def run(meanwhile: Meanwhile) -> NativeModel:
        filled = functools.partial(fill, meanwhile=meanwhile)
        if adapter is None:
            filled = KeptBlocks(folder, files_of(folder), products, meanwhile).fill
        blocks = open_blocks(folder, products, adapter)
        halves = None if products == "float32" else "bfloat16"
        model = NativeModel(blocks, products, halves, cache=cache, fill=filled)
        require_unchanged(folder)
        return model

    return _opened(name, folder, folder, _label(products, cache), run)


def _packed(
    name: str,
    folder: Path,
    products: Products,
    cache: CacheType | None,
    reason: str | None,
    adapter: "LoraAdapter | None",
) -> LoadedModel:
    """The model in a folder with matrices that are packed once, or at each load where the disk has
    no room for them.

    Args:
        reason: why Transformers has to read it; None if it need not.
    """
    from draftwood.loading import packed
    from draftwood.loading.kept_matrices import keep_within, limit
    from draftwood.loading.native_folders import of_transformers, read_folder

    def load() -> "tuple[NativeFolder, AnyTokenizer]":
        if reason is None:
            with progress(f"loading {name}"):
                return native(), open_tokenizer(folder)
        read = hub.read_folder(name, folder, None, Cpu(), adapter=adapter)
        return of_transformers(read), read.tokenizer

    def native() -> "NativeFolder":
        if is_blocks_folder(folder):
            return open_floats(folder, products, adapter)
        return read_folder(folder, None, adapter)

    label, packing = _label(products, cache), packed.packing(folder)
    if packing.why_not is None and packing.size(products) <= limit():
        mark = "" if adapter is None else adapter.mark
        pack = functools.partial(packed.packed_folder, folder, products, load, mark)
        with suppress(NoRoomError):
            return _mapped(name, folder, pack, label, cache)
    else:
        keep_within(limit())
    loaded, tokenizer = load()
    model = NativeModel(loaded.model, products, cache=cache)
    if is_blocks_folder(folder):
        require_unchanged(folder)
    return LoadedModel(model, tokenizer, folder, label)


def _mapped(
    name: str, folder: Path, pack: Callable[[], Path], label: str, cache: CacheType | None
) -> LoadedModel:
    """The model whose matrices are mapped from the folder that ``pack`` finds or makes."""
    from draftwood.loading import packed

    def opened(kept: Path) -> LoadedModel:
        return _opened(name, folder, kept, label, lambda _: packed.open_packed(kept, cache))

    kept = pack()
    try:
        return opened(kept)
    except (OSError, ValueError, ImportError):
        if kept.is_dir():
            raise
    # another process dropped it meanwhile, for room
    return opened(pack())


def _opened(
    name: str,
    folder: Path,
    described: Path,
    dtype: str,
    run: Callable[[Meanwhile], Model],
) -> LoadedModel:
    """A model of a folder that is run from what another describes, which has the tokenizer.

    Args:
        run: makes the model, and may open the tokenizer while the library lays weights out: a large
            vocabulary takes as long, and holds the interpreter all the while.
    """
    opened = functools.cache(functools.partial(open_tokenizer, described))
    with progress(f"loading {name}"):
        return LoadedModel(run(opened), opened(), folder, dtype)


def model_for(hf_model: Any, cache: CacheType | None = None) -> Model:
    """The fastest way to run a Transformers model.

    Those of the ``FAMILIES`` run in C++ on CPUs and lean elsewhere, others in the general way.

    Raises:
        ValueError: for a cache in 8 bits on other models or without a compiler, and for models that
            cannot run trees.
    """
    runner = backend("a model of Transformers")
    reason = runner.why_not_lean(hf_model)
    if reason is not None and cache is not None:
        raise ValueError(_cache_on_native_path(cache, reason))
    if reason is not None:
        return runner.general_model(hf_model)
    if cache is not None:
        return NativeModel(hf_model, cache=cache)
    if hf_model.device.type != "cpu":
        return runner.lean_model(hf_model)
    try:
        return NativeModel(hf_model)
    except CompilerError as error:
        warnings.warn(
            f"the model runs in PyTorch, about {SLOWER} times slower than in C++: {error}",
            stacklevel=2,
        )
        return runner.lean_model(hf_model)


def _cache_on_native_path(cache: CacheType, reason: str) -> str:
    return f"a cache in {cache} is for the native path, and {reason}; leave cache out"
