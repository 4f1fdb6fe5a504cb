"""Check names of models, of types of weights and of devices, without PyTorch and Transformers."""

import difflib
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.native.formats import CACHES, INTEGERS
from draftwood.optional import entry_points
from draftwood.storage.home import expanded

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

    from draftwood.arrays import FloatType

BUILTIN_NAMES = (
    *("smollm2-135m", "tinyllama-1.1b", "gemma3-270m", "stories-15m"),
    *("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
)
"""Short names that draftwood knows itself."""
DEFAULT_MODEL = BUILTIN_NAMES[0]
MTP = "mtp."
"""Begins the names of the layer for multi-token prediction, as Qwen has them."""
MODELS = "draftwood.models"
"""Entry points that name packages with models, a folder each."""
WRITERS = "draftwood.other_writers"
"""Entry points of functions that read a model's folder: how it writes if not token by token, as the
end of a sentence with the cure, or None.
"""
PICTURES = "picture.json"
"""File that says of a model that it draws pictures."""
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
DEVICES = (
    *("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "hip", "ve", "fpga", "maia"),
    *("mkldnn", "opengl", "opencl", "ideep", "lazy", "vulkan", "meta", "privateuseone"),
)
"""Types that PyTorch itself knows."""
# huggingface_hub asks twice, so an unreachable hub costs at most twice this
FIRST_ANSWER_SECONDS = 2.0


@cache
def shipped_models() -> dict[str, Path]:
    """Find the models that come with installed packages, by name; looked for once."""
    specs = [find_spec(entry.value) for entry in entry_points(MODELS)]
    places = [Path(at) for spec in specs if spec for at in spec.submodule_search_locations or ()]
    return {path.parent.name: path.parent for at in places for path in at.glob("*/config.json")}


def placed(name: str) -> str:
    """A name as it is, or the folder of the model that a package ships under it."""
    is_free = name and name not in BUILTIN_NAMES and not expanded(name).exists()
    return str(shipped_models().get(name, name)) if is_free else name


def require_model(name: str, others: Sequence[str] = ()) -> None:
    """Refuse a name that no model can have, and a path that does not exist.

    Args:
        others: names to be told among those that are accepted.

    Raises:
        ValueError: for a name that means nothing, and a model of pictures.
        FileNotFoundError: for a path that is not there, and as ``require_repository``.
    """
    if name in BUILTIN_NAMES:
        return
    if name and (path := expanded(placed(name))).exists():
        return require_no_pictures(path)
    if not is_hub_id(name):
        raise unknown(name, others)
    require_repository(name)


def require_no_pictures(folder: Path) -> None:
    """Raise ValueError for a folder whose model draws pictures instead of writing."""
    if (folder / PICTURES).is_file():
        raise ValueError(
            f"{folder} is a model of pictures; 'draftwood draw' draws with it, and 'draftwood bench"
            " pictures' compares methods"
        )


def require_how(dtype: object, device: object, cache: str | None) -> None:
    """Refuse names of types and devices that mean nothing; raises ValueError."""
    require_dtype(dtype)
    require_cache(cache)
    require_device(device)


def require_adapter(name: str | None, processes: int = 1) -> None:
    """Refuse an adapter that cannot be read, and one of a model in several processes.

    Raises:
        FileNotFoundError: where there is none.
        ValueError: for another kind of adapter, and damaged files.
    """
    if name is None:
        return
    if processes > 1:
        raise ValueError(
            "an adapter is added to a model in one process; leave out --tp, or merge the adapter"
            " into its model with PEFT"
        )
    from draftwood.loading.adapters import adapter_folder

    adapter_folder(name)


def require_dtype(dtype: object) -> None:
    """Refuse the name of a type that weights cannot have.

    Raises:
        ValueError: naming those they can have.
    """
    if isinstance(dtype, str) and dtype not in (*INTEGERS, *DTYPES):
        raise ValueError(
            f"dtype is one of {', '.join((*INTEGERS, *DTYPES))} or a torch dtype, not {dtype!r}"
        )


def name_of_dtype(dtype: object) -> str:
    """Name of a type of weights, which may be PyTorch's own."""
    return str(dtype).removeprefix("torch.")


def suffix(dtype: "FloatType") -> str:
    """Ending of folders' names that tells stored types apart; empty for bfloat16."""
    return "" if dtype == "bfloat16" else f"-{dtype}"


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


def require_device(device: object) -> None:
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
        f" {', '.join((*BUILTIN_NAMES, *shipped_models(), *others))}"
    )
    if "/" in name or name.endswith(".gguf"):
        return FileNotFoundError(f"there is no folder and no file {name}; a model is {accepted}")
    known = (*BUILTIN_NAMES, *shipped_models(), *others)
    near = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return ValueError(f"no model is named {name!r}; {hint}accepted are {accepted}")


def require_repository(name: str) -> None:
    """Refuse a repository that is neither in the local cache nor on the hub.

    Raises:
        ValueError: where the hub says that there is none.
        FileNotFoundError: where the hub cannot be asked.
        PermissionError: for one that is gated, and where the hub refuses to answer.
    """
    if not _is_cached(name) and listing(name) is None:
        raise not_there(name)


def _is_cached(repository: str) -> bool:
    """True if something of a repository lies in Hugging Face's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}").is_dir()


def not_there(repository: str) -> FileNotFoundError:
    """Error for a repository that is not in the cache, where the hub does not answer."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    reason = "HF_HUB_OFFLINE is set" if offline else "the Hugging Face hub cannot be reached"
    cure = "go online, or pass a model folder, a .gguf file or a built-in name"
    return FileNotFoundError(
        f"{repository} is not in the local Hugging Face cache and {reason}; {cure}"
        f" ({', '.join(BUILTIN_NAMES)})"
    )


def listing(repository: str) -> list[str] | None:
    """The files of a repository on the hub.

    None when the hub is switched off or does not answer quickly, and where it refuses to answer
    about a repository that is cached.

    Raises:
        ValueError: where the hub has no such repository.
        PermissionError: for one that is gated, and where the hub refuses to answer.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        siblings = HfApi().model_info(repository, timeout=FIRST_ANSWER_SECONDS).siblings
    except HFValidationError as error:
        raise ValueError(f"{repository!r} is not a Hugging Face id (org/name): {error}") from error
    except GatedRepoError as error:
        cure = "accept its terms on the hub and log in with `hf auth login`"
        raise PermissionError(f"{repository} is gated; {cure}") from error
    except RepositoryNotFoundError as error:
        cure = "check the spelling, or log in with `hf auth login` if it is private"
        raise ValueError(f"the Hugging Face hub has no model {repository}; {cure}") from error
    except HfHubHTTPError as error:
        if error.response.status_code >= 500 or _is_cached(repository):
            return None
        raise _refused(repository, error) from error
    except network_errors():
        return None
    return [sibling.rfilename for sibling in siblings or []]


def _refused(repository: str, error: "HfHubHTTPError") -> PermissionError:
    """Error for a hub that answers, and refuses; it tells the first line of what the hub said."""
    status = error.response.status_code
    is_busy = status in (408, 429)
    cure = "try again later" if is_busy else "check your token, or log in with `hf auth login`"
    reason = (error.server_message or str(error)).strip().partition("\n")[0]
    told = f"HTTP status {status}: {reason}"
    return PermissionError(f"the Hugging Face hub refuses {repository} ({told}); {cure}")


def network_errors() -> tuple[type[Exception], ...]:
    """Errors of a hub that does not answer as it should.

    OSError is among them: whoever writes to the disk tells its errors apart by their number.
    """
    # huggingface_hub lets the errors of its HTTP library through; their common base is a base of
    # HfHubHTTPError.
    from huggingface_hub.errors import HfHubHTTPError

    return (
        *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)),
        ConnectionError,
        TimeoutError,
    )


def require_token_by_token(name: str, folder: Path | None) -> None:
    """Raise ValueError for a model that a package knows to write in another way.

    Args:
        name: of the model.
        folder: of the model; None for one that came from nowhere.
    """
    if (found := other_way(folder)) is not None:
        raise ValueError(f"{name} does not write token by token: {found[0]}")


@cache
def other_way(folder: Path | None) -> tuple[str, str] | None:
    """Ask packages about a folder; once, as many texts are written.

    Returns:
        How its model writes and how to ask for it, and the method that servers take by themselves;
        None for a model that writes token by token.
    """
    told = (entry.load()(folder) for entry in entry_points(WRITERS) if folder is not None)
    return next((each for each in told if each is not None), None)
