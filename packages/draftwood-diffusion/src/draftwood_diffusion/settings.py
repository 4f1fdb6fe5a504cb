"""Settings of a masked-diffusion model, read from the config.json of its folder."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from draftwood.storage.weights import settings_or_none
from draftwood_diffusion.layouts import layout_of
from draftwood_diffusion.masked_model import DiffusionSettings

CONFIG = "config.json"
KEY = "draftwood_diffusion"
"""Under which the config.json of a converted model has its settings."""


def settings_of(folder: Path) -> DiffusionSettings | None:
    """Settings of the model in a folder; None for one that fills no masks.

    Raises:
        ValueError: for settings that make no sense.
    """
    return settings_in(settings_or_none(folder / CONFIG) or {})


def settings_in(told: Mapping[str, Any]) -> DiffusionSettings | None:
    """The same, of the content of a config.json."""
    own = told.get(KEY)
    if own is not None:
        try:
            return DiffusionSettings(**own)
        except TypeError:
            raise ValueError(
                f"{KEY} in config.json has mask_token, block_length, shifted and bidirectional, not"
                f" {own!r}; convert the model again"
            ) from None
    layout = layout_of(told)
    if layout is None:
        return None
    mask, length = (
        next((told[name] for name in names if isinstance(told.get(name), int)), usual)
        for names, usual in (
            (layout.mask_keys, layout.mask_token),
            (layout.block_keys, layout.block_length),
        )
    )
    return DiffusionSettings(mask, length, layout.shifted, layout.bidirectional)


def require_settings(
    name: str,
    found: DiffusionSettings | None,
    told: Mapping[str, int | None],
) -> DiffusionSettings:
    """Settings of a model with what is told of it beside its folder.

    Args:
        name: of the model, for the error.
        found: in its folder; None takes any model as one that fills masks, if its mask is told.
        told: fields of the settings, None for those that are not.

    Raises:
        ValueError: for a model without a mask token, which writes from left to right.
    """
    if found is None:
        mask_token = told.get("mask_token")
        if mask_token is None:
            raise ValueError(
                f"{name} writes from left to right and has no mask token to fill; take a"
                " masked-diffusion model such as stories-diffusion, convert it with 'draftwood"
                " train diffusion', or name its mask with 'draftwood generate --mask-token'"
            )
        found = DiffusionSettings(mask_token)
    given: Any = {name: each for name, each in told.items() if each is not None}
    return replace(found, **given)


def as_told(settings: DiffusionSettings) -> dict[str, Any]:
    """Settings as config.json holds them."""
    return {KEY: asdict(settings)}


def other_writer(folder: Path) -> tuple[str, str] | None:
    """Tell how a masked-diffusion model writes and how to ask for it, and what a server takes by
    itself; None for another model.
    """
    if settings_of(folder) is None:
        return None
    how = (
        "it fills masks; name a rule that says which: 'draftwood generate' takes --method"
        " one-by-one, or --method threshold with --inexact ('draftwood methods --package diffusion'"
        " lists them)"
    )
    return how, "one-by-one"
