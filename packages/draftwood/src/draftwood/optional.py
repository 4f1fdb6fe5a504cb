"""Packages beside draftwood: extras that may be missing, and entry points of what is installed."""

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint, EntryPoints
    from typing import Any

    from draftwood.backend import Backend, CustomGenerate

    custom_generate: CustomGenerate
    tiny_llama: Callable[..., Any]

EXTRA = "draftwood[torch]"
PACKAGES = ("torch", "transformers")  # that the extra brings
EXPORTED = ("custom_generate", "tiny_llama")
"""Names of the backend that packages of draftwood export."""
GROUP, NAME = "draftwood.backends", "torch"
"""Entry point of the package that runs models in PyTorch."""


def backend(what: str) -> "Backend":
    """Find the package that runs models and heads in PyTorch.

    Args:
        what: needs it, for the error; "a CUDA device", for instance.

    Raises:
        ModuleNotFoundError: with the command that installs it.
    """
    torch_needed(what)
    found = _installed()
    if found is None:
        raise _missing(what, "draftwood_torch")
    return found


@cache
def _installed() -> "Backend | None":
    """The object that the entry point names; looked for once."""
    return next((entry.load() for entry in entry_points(GROUP) if entry.name == NAME), None)


def _missing(what: str, package: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{what} needs PyTorch: pip install '{EXTRA}'", name=package)


def __getattr__(name: str) -> object:
    """Look up a name that ``draftwood`` or ``draftwood.testing`` exports for the backend."""
    if name not in EXPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(backend("this part of draftwood"), name)


def torch_needed(what: str) -> None:
    """Refuse in one line what needs PyTorch or Transformers, where one of them is missing.

    Neither is imported; whoever is not refused does that.

    Args:
        what: needs them, for the error; "a CUDA device", for instance.

    Raises:
        ModuleNotFoundError: with the command that installs both.
    """
    for package in PACKAGES:
        if not is_there(package):
            raise _missing(what, package)


def is_there(package: str) -> bool:
    """True if a package can be imported; it is not imported for that."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # refused, or half imported
        return False


def entry_points(group: str) -> "list[EntryPoint]":
    """Entry points of installed packages, by name."""
    return sorted(installed().select(group=group), key=lambda entry: (entry.name, entry.value))


@cache
def installed() -> "EntryPoints":
    """Entry points of all groups; looked for once, as each package's metadata is read for them."""
    from importlib import metadata

    # Python 3.11 gives groups, which select as entry points do
    return cast("EntryPoints", metadata.entry_points())
