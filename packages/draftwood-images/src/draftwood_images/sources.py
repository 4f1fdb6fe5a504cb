"""Models that draw, by name or folder: this package's own, and those of Transformers."""

from typing import Literal

from draftwood.optional import backend
from draftwood.storage.weights import settings_or_none
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model, picture_folder, place_of
from draftwood_images.picture_model import SETTINGS

Dtype = Literal["int8", "bfloat16", "float32"]
CONFIG, OTHERS = "config.json", ("emu3", "janus", "chameleon")


def open_drawing(name: str, dtype: Dtype | None = None) -> DrawingModel:
    """Load a model that draws.

    Args:
        name: of a model that comes with the package, or a folder: of this package, or of Emu3,
            Janus or Chameleon of Transformers.
        dtype: that its matrices are multiplied in; None takes int8, of Transformers' models their
            own.

    Raises:
        ValueError: for a model that draws no pictures, and a type that it cannot have.
        ModuleNotFoundError: where a model needs PyTorch, with the command that installs it.
    """
    folder = place_of(name)
    if not name or not folder.is_dir():
        picture_folder(name)  # says what there is
    if (folder / SETTINGS).is_file():
        return DrawingModel.of(name, load_picture_model(name, dtype or "int8"))
    kind = (settings_or_none(folder / CONFIG) or {}).get("model_type")
    if kind in OTHERS:
        if dtype == "int8":
            raise ValueError(f"{name} runs in PyTorch, in bfloat16 or float32, not in int8")
        backend(f"a model of kind {kind}")
        from draftwood_images.others.reading import open_folder

        return open_folder(folder, name, str(kind), dtype or "auto")
    cure = (
        "name a folder of 'draftwood train images' or a model of Transformers of kind"
        f" {', '.join(OTHERS)}"
    )
    if kind is None:
        raise ValueError(
            f"{name} is a folder without {SETTINGS}, and no {CONFIG} tells a kind of model; {cure}"
        )
    raise ValueError(
        f"{name} draws no pictures: it is a model of kind {kind!r}; write with it by 'draftwood"
        f" generate', or {cure}"
    )
