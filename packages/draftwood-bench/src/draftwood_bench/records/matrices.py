"""Count the weights of a model that a pass reads, by the shapes in its folder."""

from math import prod
from pathlib import Path

from draftwood.loading.weights import WeightsFolder


def matrix_sizes(folder: Path) -> int | None:
    """Count the weights that one token needs.

    Of an embedding that is no output layer too, only a row is read. None for a folder without
    safetensors.
    """
    known = WeightsFolder(folder).shapes
    shapes = {name.removesuffix(".weight"): shape for name, shape in known.items()}
    if "lm_head" in shapes:
        shapes.pop("model.embed_tokens", None)
    return sum(prod(shape) for shape in shapes.values()) or None
