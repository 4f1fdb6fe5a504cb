"""A loaded model as one that fills masks."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.settings import require_settings, settings_of

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

MASK_TOKEN, BLOCK_LENGTH, SHIFTED = "--mask-token", "--block-length", "--shifted"


def masked_model(lm: "LanguageModel", given: Mapping[str, int]) -> MaskedModel:
    """The model with the settings of its diffusion.

    Args:
        lm: a loaded model.
        given: settings that the user gives, by their options; they go before the model's own.

    Raises:
        ValueError: for a model that no settings call a masked-diffusion model.
    """
    folder = lm.calibration.folder
    found = None if folder is None else settings_of(Path(folder))
    told = {
        "mask_token": given.get(MASK_TOKEN),
        "block_length": given.get(BLOCK_LENGTH),
        "shifted": given.get(SHIFTED),
    }
    return MaskedModel(lm.model, require_settings(lm.name, found, told))
