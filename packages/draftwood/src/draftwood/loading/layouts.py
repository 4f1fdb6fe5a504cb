"""Layouts of folders that packages know: settings and tensors of a known decoder, named otherwise.

A package names its layouts in the entry points ``draftwood.layouts``, by their ``model_type``. No
code from a folder runs.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from draftwood.optional import entry_points

GROUP = "draftwood.layouts"


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
