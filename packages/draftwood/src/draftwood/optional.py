"""Packages beside draftwood: extras that may be missing, and entry points of what is installed."""

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

EXTRA = "draftwood[torch]"
PACKAGES = ("torch", "transformers")  # that the extra brings


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
            raise ModuleNotFoundError(f"{what} needs PyTorch: pip install '{EXTRA}'", name=package)


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
