"""Models that draw, by name or folder: this package's own, and those of Transformers."""

from pathlib import Path
from typing import Literal

from draftwood.storage.weights import settings_or_none
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model, picture_folder, shipped_models
from draftwood_images.picture_model import SETTINGS

Dtype = Literal["int8", "bfloat16", "float32"]
CONFIG = "config.json"


def open_drawing(name: str, dtype: Dtype = "int8") -> DrawingModel:
    """Load a model that draws.

    Args:
        name: of a model that comes with the package, or a folder.
        dtype: that its matrices are multiplied in.

    Raises:
        ValueError: for a model that draws no pictures.
    """
    folder = Path(name).expanduser()
    if name in shipped_models() or (folder / SETTINGS).is_file():
        return DrawingModel.of(name, load_picture_model(name, dtype))
    if not folder.is_dir():
        picture_folder(name)  # says what there is
    kind = (settings_or_none(folder / CONFIG) or {}).get("model_type")
    raise ValueError(
        f"{name} draws no pictures: it is a model of kind {kind!r}; 'draftwood generate' writes"
        " with models of texts, and 'draftwood draw' takes a folder of 'draftwood train images'"
    )
