"""A causal transformer with a diffusion head, written once for NumPy and PyTorch.

Arrays of both have all that is called here; ``xp`` is the module of theirs. So what is trained in
PyTorch is, operation by operation, what runs without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Weights = Mapping[str, Any]
"""Arrays or tensors by name."""
EPSILON = 1e-6


@dataclass(frozen=True)
class PatchSettings:
    """Sizes of a network, and its picture's.

    Attributes:
        patch: edge of a token's square, in pixels.
        edge: of a picture, in patches.
        width: of the transformer.
        layers: of it.
        heads: of its attention.
        head_width: of the diffusion head.
        head_layers: of it.
        steps: of denoising.
        last: deviation of the last step, which is the least of all; grey levels go from -1 to 1.
    """

    patch: int = 2
    edge: int = 4
    width: int = 64
    layers: int = 4
    heads: int = 4
    head_width: int = 64
    head_layers: int = 3
    steps: int = 20
    last: float = 0.05

    @property
    def length(self) -> int:
        return self.edge**2

    @property
    def size(self) -> int:
        return self.patch**2


def first_weights(settings: PatchSettings, seed: int) -> dict[str, np.ndarray]:
    """Draw weights to begin training with."""
    rng, found = np.random.default_rng(seed % (1 << 64)), dict[str, np.ndarray]()
    width, inner = settings.width, settings.head_width

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        drawn = rng.standard_normal((rows, columns)) * scale / np.sqrt(rows)
        found[name] = drawn.astype(np.float32)

    matrix("embed", settings.size, width)
    matrix("position", settings.length, width, np.sqrt(settings.length) * 0.1)
    for layer in range(settings.layers):
        matrix(f"{layer}.qkv", width, 3 * width)
        matrix(f"{layer}.out", width, width, 0.3)
        matrix(f"{layer}.up", width, 4 * width)
        matrix(f"{layer}.down", 4 * width, width, 0.3)
        found[f"{layer}.sharp"] = np.full(settings.heads, 2.0, np.float32)
    matrix("head.point", settings.size, inner)
    matrix("head.state", width, inner)
    matrix("head.step", settings.steps, inner, np.sqrt(settings.steps) * 0.5)
    for layer in range(settings.head_layers):
        matrix(f"head.{layer}.up", inner, 2 * inner)
        matrix(f"head.{layer}.down", 2 * inner, inner, 0.3)
    matrix("head.out", inner, settings.size, 0.3)
    return found


def states_of(weights: Weights, settings: PatchSettings, shifted: Any, xp: Any) -> Any:
    """States [pictures tokens+1 width] from which tokens are drawn.

    Args:
        shifted: [pictures tokens+1 size], a token of zeros before all others.
    """
    places = shifted.shape[1]
    x = shifted @ weights["embed"] + weights["position"][:places]
    seen = xp.tril(xp.ones((places, places), dtype=x.dtype))
    for layer in range(settings.layers):
        x = x + _attended(weights, settings, layer, _normed(x), seen, xp)
        x = x + _silu(_normed(x) @ weights[f"{layer}.up"], xp) @ weights[f"{layer}.down"]
    return _normed(x)


def _attended(
    weights: Weights, settings: PatchSettings, layer: int, x: Any, seen: Any, xp: Any
) -> Any:
    pictures, places, width = x.shape
    split = (pictures, places, 3, settings.heads, width // settings.heads)
    parts = (x @ weights[f"{layer}.qkv"]).reshape(split).swapaxes(1, 3)
    queries, keys, values = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
    sharp = weights[f"{layer}.sharp"].reshape(-1, 1, 1)
    # normed rows bound the scores, so their exponentials need no shift
    scores = sharp * (_normed(queries) @ _normed(keys).swapaxes(-1, -2)) / queries.shape[-1] ** 0.5
    shares = xp.exp(scores) * seen
    mixed = (shares @ values) / shares.sum(-1)[..., None]
    return mixed.swapaxes(1, 2).reshape(pictures, places, width) @ weights[f"{layer}.out"]


def velocities(
    weights: Weights, settings: PatchSettings, states: Any, points: Any, steps: Any, xp: Any
) -> Any:
    """Velocities [rows size] that the diffusion head sees at points: noise less picture, weighed.

    Salimans and Ho 2022, arXiv:2202.00512: alpha * noise - sigma * token at alpha * token + sigma *
    noise.
    """
    below = weights["head.step"][steps] + states @ weights["head.state"]
    x = points @ weights["head.point"]
    for layer in range(settings.head_layers):
        inner = _silu(_normed(x + below) @ weights[f"head.{layer}.up"], xp)
        x = x + inner @ weights[f"head.{layer}.down"]
    return _normed(x) @ weights["head.out"]


def _normed(x: Any) -> Any:
    return x / ((x * x).mean(-1)[..., None] + EPSILON) ** 0.5


def _silu(x: Any, xp: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(0.5 * x))
