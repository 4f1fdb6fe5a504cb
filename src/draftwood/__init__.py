"""Lossless speculative decoding with draft trees: faster text, the same text."""

from draftwood.engine import Decoding, Options, generate, generate_batch
from draftwood.hooks import custom_generate
from draftwood.language_model import Generation, LanguageModel, Stream, load
from draftwood.methods import Method
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.stats import Stats, Step
from draftwood.tree import DraftTree
from draftwood.version import __version__


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
