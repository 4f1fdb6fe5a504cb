"""Ways to run a block: with a cache of finished blocks, or the whole text every time."""

from collections.abc import Sequence

from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.passes.at_once import AtOnce
from draftwood_diffusion.passes.base import Passes
from draftwood_diffusion.passes.in_blocks import InBlocks


def passes_of(masked: MaskedModel, prompt: Sequence[int], total: int) -> Passes:
    """Passes that fit a model.

    Args:
        masked: the model.
        prompt: tokens of a text.
        total: places of prompt and text.
    """
    kind = AtOnce if masked.settings.bidirectional else InBlocks
    return kind(masked, prompt, total)
