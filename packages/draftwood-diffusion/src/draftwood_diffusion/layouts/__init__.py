"""Layouts of published masked-diffusion models: known decoders under other names."""

from collections.abc import Mapping
from typing import Any

from draftwood_diffusion.layouts.dream import DREAM
from draftwood_diffusion.layouts.fast_dllm import FAST_DLLM
from draftwood_diffusion.layouts.layout import FolderLayout
from draftwood_diffusion.layouts.llada import LLADA
from draftwood_diffusion.layouts.sdar import SDAR

LAYOUTS: dict[str, FolderLayout] = {
    each.model_type: each for each in (LLADA, DREAM, SDAR, FAST_DLLM)
}
"""By ``model_type`` in config.json."""


def layout_of(told: Mapping[str, Any]) -> FolderLayout | None:
    """The layout of a folder with this config.json; None for one that is none of them."""
    return LAYOUTS.get(str(told.get("model_type")))
