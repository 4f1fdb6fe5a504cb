"""A loaded model as one that fills masks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from draftwood_diffusion.masked_model import DiffusionSettings, MaskedModel

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

MASK_TOKEN, BLOCK_LENGTH = "--mask-token", "--block-length"


def masked_model(lm: "LanguageModel", given: Mapping[str, int]) -> MaskedModel:
    """The model with the settings of its diffusion.

    Args:
        lm: a loaded model.
        given: settings that the user gives, by their options; they go before the model's own.

    Raises:
        ValueError: for a model that no settings call a masked-diffusion model.
    """
    if MASK_TOKEN not in given:
        raise ValueError(
            f"{lm.name} is no masked-diffusion model: its settings name no mask token; leave"
            f" --method out to write token by token, or name the token with {MASK_TOKEN}"
        )
    length = given.get(BLOCK_LENGTH, DiffusionSettings.block_length)
    return MaskedModel(lm.model, DiffusionSettings(given[MASK_TOKEN], length))
