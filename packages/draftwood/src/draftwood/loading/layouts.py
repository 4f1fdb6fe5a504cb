"""Layouts of folders that packages know: settings and tensors of a known decoder, named otherwise.

A package names its layouts in the entry points ``draftwood.layouts``, by their ``model_type``. No
code from a folder runs.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from draftwood.optional import entry_points

GROUP = "draftwood.layouts"
WRITERS = "draftwood.other_writers"
"""Entry points of functions that read a model's folder: how it writes if not token by token, as the
end of a sentence with the cure, or None.
"""


class KnownLayout(Protocol):
    """A layout of model folders."""

    def told(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json of the decoder; raises ValueError where it is of another shape."""
        ...

    def name(self, tensor: str) -> str:
        """The decoder's name of a tensor."""
        ...


def layout_of(config: Mapping[str, Any]) -> KnownLayout | None:
    """The layout that a config.json names by its ``model_type``; None for a known decoder's own."""
    kind = str(config.get("model_type"))
    found = next((entry for entry in entry_points(GROUP) if entry.name == kind), None)
    return None if found is None else found.load()


def require_token_by_token(name: str, folder: Path | None) -> None:
    """Raise ValueError for a model that a package knows to write in another way.

    Args:
        name: of the model.
        folder: of the model; None for one that came from nowhere.
    """
    if folder is not None and (how := _other_way(folder)) is not None:
        raise ValueError(f"{name} does not write token by token: {how}")


@cache
def _other_way(folder: Path) -> str | None:
    """Ask packages about a folder; once, as many texts are written."""
    told = (entry.load()(folder) for entry in entry_points(WRITERS))
    return next((each for each in told if each is not None), None)
