"""Check names of models, of types of weights and of devices, without imports or downloads."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.native.formats import CACHES, INTEGERS

if TYPE_CHECKING:
    import torch

BUILTIN_NAMES = (
    *("smollm2-135m", "tinyllama-1.1b", "gemma3-270m", "stories-15m"),
    *("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
)
DEFAULT_MODEL = BUILTIN_NAMES[0]
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
DEVICES = (
    *("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "hip", "ve", "fpga", "maia"),
    *("mkldnn", "opengl", "opencl", "ideep", "lazy", "vulkan", "meta", "privateuseone"),
)
"""Types that PyTorch itself knows."""


def builtin_names() -> tuple[str, ...]:
    """The short names that draftwood knows itself."""
    return BUILTIN_NAMES


def require_model(name: str, others: Sequence[str] = ()) -> None:
    """Refuse a name that no model can have, and a path that does not exist.

    Args:
        others: names to be told among those that are accepted.

    Raises:
        ValueError: for a name that means nothing.
        FileNotFoundError: for a path that is not there, and as ``require_repository``.
    """
    if (name and Path(name).expanduser().exists()) or name in BUILTIN_NAMES:
        return
    if not is_hub_id(name):
        raise unknown(name, others)
    from draftwood.loading.repositories import require_repository

    require_repository(name)


def require_dtype(dtype: "str | torch.dtype | None") -> None:
    """Refuse the name of a type that weights cannot have.

    Raises:
        ValueError: naming those they can have.
    """
    if isinstance(dtype, str) and dtype not in (*INTEGERS, *DTYPES):
        raise ValueError(
            f"dtype is one of {', '.join((*INTEGERS, *DTYPES))} or a torch dtype, not {dtype!r}"
        )


def require_cache(cache: str | None) -> None:
    """Refuse the name of a type that keys and values cannot have.

    Raises:
        ValueError: naming those they can have.
    """
    if cache is not None and cache not in CACHES:
        raise ValueError(
            f"cache is {' or '.join(CACHES)}, or left out for keys and values in floats, not"
            f" {cache!r}"
        )


def require_device(device: "str | torch.device | None") -> None:
    """Refuse what names no device of PyTorch, nor of a package that adds one; whether there is one
    here is not asked.

    Raises:
        ValueError: for such a name.
    """
    if not isinstance(device, str) or _may_be_device(device):
        return
    raise ValueError(
        f"there is no device {device!r} to run on (devices are called cpu, cuda, cuda:0, ...);"
        " leave device out to take the best"
    )


def _may_be_device(device: str) -> bool:
    if re.fullmatch(rf"({'|'.join(DEVICES)})(:\d+)?", device):
        return True
    from importlib.metadata import entry_points

    return bool(entry_points(group="torch.backends"))


def is_hub_id(name: str) -> bool:
    """True if a name has the form of a repository's on the Hugging Face hub."""
    return (
        re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
        and not name.startswith((".", "/"))
        and not name.endswith(".gguf")
    )


def unknown(name: str, others: Sequence[str] = ()) -> ValueError | FileNotFoundError:
    """Error for a name that means nothing.

    Args:
        others: names that are accepted too.
    """
    accepted = (
        "a model folder, a .gguf file, a Hugging Face id (org/name), or one of"
        f" {', '.join((*builtin_names(), *others))}"
    )
    if "/" in name or name.endswith(".gguf"):
        return FileNotFoundError(f"there is no folder and no file {name}; a model is {accepted}")
    near = difflib.get_close_matches(name.lower(), (*builtin_names(), *others), n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return ValueError(f"no model is named {name!r}; {hint}accepted are {accepted}")
