"""Lossless speculative decoding with draft trees: faster text, the same text.

Names are imported when they are first used, so that ``import draftwood`` costs nothing.
"""

from draftwood.lazy import importer
from draftwood.moved import forward
from draftwood.version import __version__

TYPE_CHECKING = False  # as in draftwood.lazy
if TYPE_CHECKING:
    from draftwood.engine import Options, Sequence, generate, generate_batch
    from draftwood.methods import Method
    from draftwood.models.model import RowsInput
    from draftwood.optional import custom_generate
    from draftwood.rng import Rng
    from draftwood.sampling import Sampling
    from draftwood.sampling_params import SamplingParams
    from draftwood.stats import Stats, Step
    from draftwood.text.language_model import LanguageModel, load
    from draftwood.text.stream import Generation, Stream
    from draftwood.tree import DraftTree

_HOMES = {
    "draftwood.engine": ("Options", "Sequence", "generate", "generate_batch"),
    "draftwood.optional": ("custom_generate",),
    "draftwood.text.language_model": ("LanguageModel", "load"),
    "draftwood.methods": ("Method",),
    "draftwood.models.model": ("RowsInput",),
    "draftwood.rng": ("Rng",),
    "draftwood.sampling": ("Sampling",),
    "draftwood.sampling_params": ("SamplingParams",),
    "draftwood.stats": ("Stats", "Step"),
    "draftwood.text.stream": ("Generation", "Stream"),
    "draftwood.tree": ("DraftTree",),
}

__all__ = [
    "DraftTree",
    "Generation",
    "LanguageModel",
    "Method",
    "Options",
    "Rng",
    "RowsInput",
    "Sampling",
    "SamplingParams",
    "Sequence",
    "Stats",
    "Step",
    "Stream",
    "__version__",
    "custom_generate",
    "generate",
    "generate_batch",
    "load",
]

__getattr__ = importer(__name__, _HOMES)
forward()


def __dir__() -> list[str]:
    return __all__
