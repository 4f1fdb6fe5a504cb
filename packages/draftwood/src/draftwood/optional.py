"""Packages beside draftwood: what may be missing, what installs it, and their entry points."""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint, EntryPoints
    from typing import Any

    from draftwood.backend import Backend, CustomGenerate

    custom_generate: CustomGenerate
    tiny_llama: Callable[..., Any]

PACKAGES = ("torch", "transformers")  # that draftwood-torch brings
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
    cure = install_command("draftwood-torch")
    return ModuleNotFoundError(f"{what} needs PyTorch: {cure}", name=package)


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


def install_command(package: str) -> str:
    """Write the command that installs a package.

    Draftwood installed from a folder, as in a clone, has its packages beside that folder; of those
    that the package needs, the missing ones come first. Elsewhere pip finds them by name.

    Args:
        package: its name and extras, such as "draftwood-torch" or "draftwood[ray]".
    """
    from shlex import quote

    name, bracket, extras = package.partition("[")
    beside, editable = _home()
    if beside is None or not (beside / name / "pyproject.toml").is_file():
        return f"pip install {quote(package)}"
    needed = _needed(beside, name, extras.rstrip("]").split(","))
    names = [each for each in needed if each == name or not is_there(each.replace("-", "_"))]
    places = [_shown(beside / each) + (bracket + extras) * (each == name) for each in names]
    return " ".join(["pip install", *("-e " * editable + quote(place) for place in places)])


def _home() -> tuple[Path | None, bool]:
    """Folder of packages that draftwood was installed from, and whether changes there count."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:  # as pip writes it (PEP 610)
        record = json.loads(distribution("draftwood").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None, False
    if "dir_info" not in record:  # from an index, or one wheel
        return None, False
    folder = Path(unquote(urlsplit(record["url"]).path))
    return folder.parent, bool(record["dir_info"].get("editable"))


def _needed(beside: Path, name: str, extras: "Sequence[str]" = ()) -> list[str]:
    """Packages in a folder that one there needs with extras, and itself behind them."""
    import re

    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = (beside / name / "pyproject.toml").read_text(encoding="utf-8")
    project = toml.loads(text)["project"]
    more = project.get("optional-dependencies", {})
    asked = [project.get("dependencies", ()), *(more.get(extra, ()) for extra in extras)]
    names = [re.split(r"[^\w-]", each)[0] for part in asked for each in part]
    ours = [each for each in names if (beside / each / "pyproject.toml").is_file()]
    found = [other for each in ours for other in _needed(beside, each)]
    return [*dict.fromkeys(found), name]


def _shown(folder: Path) -> str:
    """Name a folder as one types it, from the current one where it lies within."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
