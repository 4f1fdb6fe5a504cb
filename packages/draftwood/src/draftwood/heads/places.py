"""Where trained drafters lie, told without PyTorch."""

from pathlib import Path
from typing import TypeVar

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SHIPPED = Path(__file__).parents[1] / "shipped"
"""Drafters that come with draftwood, a folder each."""

Named = TypeVar("Named")

LEFT_OUT = "none"
"""In the place of a drafter's name: there shall be none, not even one that comes with draftwood."""


def shipped() -> list[str]:
    """Names of the drafters that come with draftwood."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def named(drafter: Named) -> Named | None:
    """A drafter as it is given; None for ``LEFT_OUT``.

    Raises:
        TypeError: for what names no drafter and is none.
    """
    if not (drafter is None or isinstance(drafter, (str, Path)) or hasattr(drafter, "target")):
        wanted = "a drafter's folder or name, or what heads.folder.load gave"
        raise TypeError(f"drafter must be {wanted}, got {drafter!r:.80}")
    return None if drafter == LEFT_OUT else drafter


def folder_of(name: str | Path) -> Path:
    """A path as it is, or the folder of a drafter that comes with draftwood."""
    path = Path(name)
    return SHIPPED / path if not path.exists() and str(name) in shipped() else path


def require_folder(drafter: str | Path) -> Path:
    """The folder of a drafter, with the files that one has.

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
