"""What cannot be loaded or written, refused before PyTorch and Transformers are imported.

``draftwood.load`` asks here, and so does the command line, whose refusals then take no time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.heads.places import named, require_folder
from draftwood.loading.names import require_cache, require_device, require_dtype, require_model
from draftwood.sampling_params import OPTIONS, SamplingParams
from draftwood.storage.datastores import require_datastore

if TYPE_CHECKING:
    import torch

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_METHOD = "auto"


def require_weights(
    models: Sequence[object] = (),
    drafter: object = None,
    datastore: object = None,
    dtype: "str | torch.dtype | None" = None,
    device: "str | torch.device | None" = None,
    cache: str | None = None,
) -> None:
    """Refuse names that mean nothing, and files that are not there.

    Args:
        models: target and draft models; those that are no names are passed over.
        drafter: a trained one's folder or name; likewise.
        datastore: its file; likewise.
        dtype: as ``draftwood.load`` takes it, as are the device and the cache.

    Raises:
        ValueError: for a name that means nothing.
        FileNotFoundError: for a path where nothing is.
    """
    require_dtype(dtype)
    require_cache(cache)
    require_device(device)
    for model in models:
        if isinstance(model, str):
            require_model(model)
    given = named(drafter)
    if isinstance(given, str | Path):
        require_folder(given)
    if isinstance(datastore, str | Path):
        require_datastore(Path(datastore))


def require_decoding(given: Mapping[str, Any]) -> None:
    """Refuse options of ``LanguageModel.stream`` that no model takes; others are passed over.

    Raises:
        TypeError: for a value of another type.
        ValueError: for a value out of range, and a schema that is none.
    """
    SamplingParams(**{name: given[name] for name in OPTIONS if name in given})
