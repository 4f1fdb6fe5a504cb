"""Lossless speculative decoding with draft trees: faster text, the same text.

Names are imported when they are first used, so that ``import draftwood`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from draftwood.version import __version__

if TYPE_CHECKING:
    from draftwood.engine import Decoding, Options, generate, generate_batch
    from draftwood.methods import Method
    from draftwood.rng import Rng
    from draftwood.sampling import Sampling
    from draftwood.stats import Stats, Step
    from draftwood.text.hooks import custom_generate
    from draftwood.text.language_model import LanguageModel, load
    from draftwood.text.stream import Generation, Stream
    from draftwood.tree import DraftTree

_HOMES = {
    "engine": ("Decoding", "Options", "generate", "generate_batch"),
    "text.hooks": ("custom_generate",),
    "text.language_model": ("LanguageModel", "load"),
    "methods": ("Method",),
    "rng": ("Rng",),
    "sampling": ("Sampling",),
    "stats": ("Stats", "Step"),
    "text.stream": ("Generation", "Stream"),
    "tree": ("DraftTree",),
}

__all__ = [
    "Decoding",
    "DraftTree",
    "Generation",
    "LanguageModel",
    "Method",
    "Options",
    "Rng",
    "Sampling",
    "Stats",
    "Step",
    "Stream",
    "__version__",
    "custom_generate",
    "generate",
    "generate_batch",
    "load",
]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"draftwood.{home}"), name)
    raise AttributeError(f"module 'draftwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
