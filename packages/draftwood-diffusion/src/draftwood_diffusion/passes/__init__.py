"""Ways to run a block: with a cache of finished blocks, or the whole text every time."""

from collections.abc import Sequence

from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.passes.at_once import AtOnce
from draftwood_diffusion.passes.base import Passes
from draftwood_diffusion.passes.in_blocks import InBlocks
from draftwood_diffusion.passes.reusing import Reusing
from draftwood_diffusion.reuse import Reuse


def passes_of(
    masked: MaskedModel, prompt: Sequence[int], total: int, reuse: Reuse | None = None
) -> Passes:
    """Passes that fit a model.

    Args:
        masked: the model.
        prompt: tokens of a text.
        total: places of prompt and text.
        reuse: what approximate passes keep; None for exact ones.
    """
    if reuse is not None and reuse.keeps_prefix:
        return Reusing(masked, prompt, total, reuse)
    kind = AtOnce if masked.settings.bidirectional else InBlocks
    return kind(masked, prompt, total)
