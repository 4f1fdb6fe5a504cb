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


class AsQwen2:
    """Folders of models that are Qwen2's in all but their name."""

    def told(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**config, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}

    def name(self, tensor: str) -> str:
        return tensor


OWN: Mapping[str, KnownLayout] = {"mimo": AsQwen2()}


def layout_of(config: Mapping[str, Any]) -> KnownLayout | None:
    """The layout that a config.json names by its ``model_type``; None for a known decoder's own."""
    kind = str(config.get("model_type"))
    if kind in OWN:
        return OWN[kind]
    found = next((entry for entry in entry_points(GROUP) if entry.name == kind), None)
    return None if found is None else found.load()
