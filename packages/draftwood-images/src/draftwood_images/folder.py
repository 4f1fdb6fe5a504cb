"""Find and load models of pictures by name or folder, without PyTorch."""

import os
from pathlib import Path
from typing import Literal

from draftwood.loading.native_folders import read_folder
from draftwood.models.native import NativeModel
from draftwood_images.codec import read_codec
from draftwood_images.picture_model import SETTINGS, PictureModel, PictureSettings

SHIPPED = Path(__file__).parent / "shipped"
DTYPES = ("int8", "bfloat16", "float32")


def shipped_models() -> dict[str, Path]:
    """Find the models that come with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{SETTINGS}"))}


def place_of(name: str) -> Path:
    """Name the place where the folder of a model is, if there is one."""
    return shipped_models().get(name, Path(os.path.expanduser(name)))


def picture_folder(name: str | Path) -> Path:
    """Find the folder of a model of pictures.

    Args:
        name: a folder, or the name of a model that comes with the package; a path is a folder.

    Raises:
        ValueError: where it is neither.
    """
    known = shipped_models()
    folder = place_of(name) if isinstance(name, str) else Path(os.path.expanduser(name))
    if not name or not folder.is_dir():
        raise ValueError(
            f"there is no model of pictures {name or repr(name)}; name its folder, or one of:"
            f" {', '.join(known)}"
        )
    if not (folder / SETTINGS).is_file():
        raise ValueError(
            f"{name} is no model of pictures: its folder has no {SETTINGS}; name one of:"
            f" {', '.join(known)}"
        )
    return folder


def load_picture_model(
    name: str | Path, dtype: Literal["int8", "bfloat16", "float32"] = "bfloat16"
) -> PictureModel:
    """Load a model of pictures, its settings and its codec.

    Args:
        name: as ``picture_folder`` takes it.
        dtype: that matrices are multiplied in.

    Raises:
        ValueError: for a folder that is none, and for parts that do not fit each other.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
    folder = picture_folder(name)
    settings, codec = PictureSettings.load(folder), read_codec(folder)
    if len(codec.vectors) != settings.codes or codec.grid not in (
        None,
        (settings.rows, settings.columns),
    ):
        raise ValueError(
            f"the codec in {folder} is for other tokens: it has {len(codec.vectors)} codes"
            f" (grid {codec.grid}), the model {settings.codes} on {settings.rows} x"
            f" {settings.columns}; copy both files from one training"
        )
    floats = None if dtype == "int8" else dtype
    products = "int8" if dtype == "int8" else None
    model = NativeModel(read_folder(folder, floats).model, products)
    if model.vocab_size < settings.vocabulary:
        raise ValueError(
            f"the model in {folder} has {model.vocab_size} tokens, its {SETTINGS} needs"
            f" {settings.vocabulary}; copy both files from one training"
        )
    return PictureModel(model, settings, codec)
