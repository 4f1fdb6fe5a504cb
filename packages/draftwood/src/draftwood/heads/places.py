"""Find the folders of trained drafters, without PyTorch."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftwood.optional import entry_points
from draftwood.storage.home import expanded
from draftwood.storage.weights import settings_or_none

FORMAT = "draftwood-drafter"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "card.md"
SHIPPED = Path(__file__).parents[1] / "shipped"
"""The built-in model's own drafter, in a folder."""
GROUP = "draftwood.heads"
"""Entry points that name packages with further drafters, a folder each."""

LEFT_OUT = "none"
"""Name that means no drafter, not even one that comes with draftwood."""


def shipped() -> list[str]:
    """Name the drafters that come with draftwood and with installed packages."""
    return sorted(shipped_folders())


def shipped_folders() -> dict[str, Path]:
    """Find these drafters' folders, by name."""
    places = [SHIPPED, *places_of_packages()]
    return {path.parent.name: path.parent for at in places for path in at.glob(f"*/{CONFIG}")}


@cache
def places_of_packages() -> tuple[Path, ...]:
    """Find installed packages with drafters; looked for once, and not imported."""
    found = [find_spec(entry.value) for entry in entry_points(GROUP)]
    return tuple(Path(at) for spec in found if spec for at in spec.submodule_search_locations or ())


def folder_of(name: str | Path) -> Path:
    """A path as it is, or the folder of a drafter that comes with draftwood."""
    path = expanded(name)
    return path if path.exists() else shipped_folders().get(str(name), path)


def config_in(name: str | Path) -> dict[str, Any]:
    """Read the config.json of a trained head; empty for what is none.

    Args:
        name: a folder, or the name of a head that comes with draftwood.
    """
    says = settings_or_none(folder_of(name) / CONFIG) or {}
    return says if says.get("format") == FORMAT else {}


def is_head(name: str | Path) -> bool:
    """True if a name means a trained head's folder, even where its config.json is torn."""
    try:
        return f'"{FORMAT}"' in (folder_of(name) / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def require_folder(drafter: str | Path) -> Path:
    """Return the folder of a drafter, and check that its files are there.

    Args:
        drafter: a path, or the name of a drafter that comes with draftwood.

    Raises:
        ValueError: where there is none, or a file is missing.
    """
    folder = folder_of(drafter)
    if not folder.is_dir():
        raise ValueError(
            f"there is no drafter's folder {folder}; name one with {CONFIG} in it, or one of"
            f" draftwood's own: {', '.join(shipped())}"
        )
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}, so it is no whole drafter; copy it again")
    return folder
