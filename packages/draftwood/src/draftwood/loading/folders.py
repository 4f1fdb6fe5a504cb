"""Model folders on disk: written whole or not at all, checked before they are read.

A folder that draftwood makes is built under a hidden name beside its destination and renamed at the
end, so a process that dies half-way leaves nothing under the real name. `draftwood.json` inside
says where the weights came from and how large every file must be.

A configuration is compared with the weights beside it: Transformers builds the configured model,
fills missing tensors with random numbers, and ignores unknown ones.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwood.loading.names import require_no_pictures
from draftwood.optional import backend
from draftwood.storage.atomic import MANIFEST, sha256
from draftwood.storage.safetensors import read_header
from draftwood.storage.weights import WEIGHTS, WHOLE, settings_or_none

SMALL = 1 << 20
"""Largest file, in bytes, that is compared with its digest at every read."""

TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTH = ("hidden_size", "n_embd", "d_model")
PACKED = 4
"""Most entries of a matrix that one byte packs."""

REST = "small.safetensors"
"""File of the small tensors of a model whose matrices lie elsewhere."""

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model."
NAME_MODEL = "name its model, and this folder with --adapter (adapter= in Python)"
MERGE = "merge it into its model (merge_and_unload of PEFT, then save_pretrained) and name that"


def check_folder(folder: Path) -> None:
    """Check that a folder can be loaded: the right files, whole.

    Cheap: of weights only sizes are read.

    Raises FileNotFoundError when a file is missing and ValueError when one is damaged.
    """
    if (folder / MANIFEST).is_file():
        _check_sizes(folder)
    require_no_adapter(folder)
    if not (folder / "config.json").is_file():
        inside = sorted(path.name for path in folder.glob("*.gguf"))
        hint = (
            f"pass the file {folder / inside[0]} instead"
            if inside
            else "a model folder needs that file"
        )
        raise FileNotFoundError(f"{folder} is a folder without config.json; {hint}")
    weights = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    if not weights:
        raise FileNotFoundError(
            f"{folder} has no weights: a model folder needs one of {', '.join(WEIGHTS)}"
        )
    _check_shards(folder)
    require_no_pictures(folder)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise FileNotFoundError(
            f"{folder} has no tokenizer: a model folder needs one of {', '.join(TOKENIZERS)}"
        )
    headers = [read_header(path) for path in weights if path.suffix == ".safetensors"]
    _require_agreement(folder, headers)


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Turn any error of Transformers about a folder into a ValueError that names it.

    Missing files, packages and memory keep their own errors.
    """
    try:
        yield
    except (OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # tokenizers and safetensors have types of their own
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"Transformers cannot load the model in {folder}: {reason}") from error


BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def weight_bytes(folder: Path, dtype: str | None = None) -> int:
    """Bytes of a folder's weights in memory, in this type or, in another than ours, as stored.

    A second copy of them in another form does not count.
    """
    from draftwood.loading.tensors import weight_files  # of safetensors alone

    found = [path for path in weight_files(folder) if path.is_file()]
    total = 0
    for path in found or [path for pattern in WEIGHTS for path in folder.glob(pattern)]:
        size = BYTES.get(dtype or "")
        if size is None or path.suffix != ".safetensors":
            total += path.stat().st_size
        else:
            shapes = (each["shape"] for each in read_header(path).values())
            total += sum(map(math.prod, shapes)) * size
    return total


def _check_shards(folder: Path) -> None:
    """Look for the files that an index of sharded weights names."""
    for path in folder.glob("*.index.json"):
        if path.name == f"{WHOLE}.index.json" and (folder / WHOLE).is_file():
            continue  # which is read
        try:
            named = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
            missing = [name for name in named if not (folder / name).is_file()]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{path} cannot be read as an index of weights; fetch the file again"
            ) from None
        if missing and not _is_copy(path, folder):
            raise FileNotFoundError(
                f"{folder} lacks {len(missing)} of the {len(named)} files that {path.name} names,"
                f" the first is {missing[0]}; fetch it again and put it there"
            )


def _is_copy(index: Path, folder: Path) -> bool:
    """True if an index belongs to a second copy of the weights.

    That copy is left out where safetensors are whole.
    """
    return ".bin." in index.name and any(folder.glob("*.safetensors"))


def verify(folder: Path) -> None:
    """Read every file of a folder that draftwood made and compare it with its recorded SHA-256.

    Raises FileNotFoundError when the folder has no manifest and ValueError when a file differs.
    """
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(
            f"{folder} has no {MANIFEST}, so there is nothing to compare its files with"
        )
    _check_sizes(folder)
    for name, record in _read_manifest(folder).items():
        if (found := sha256(folder / name)) != record["sha256"]:
            raise ValueError(
                _damaged(folder, f"{name} has SHA-256 {found}, recorded was {record['sha256']}")
            )


def _read_manifest(folder: Path) -> dict[str, dict]:
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {
            name: {"bytes": int(record["bytes"]), "sha256": record["sha256"]}
            for name, record in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(_damaged(folder, f"{MANIFEST} cannot be read")) from None


def _check_sizes(folder: Path) -> None:
    for name, record in _read_manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise ValueError(_damaged(folder, f"{name} is missing"))
        if path.stat().st_size != record["bytes"]:
            raise ValueError(
                _damaged(
                    folder,
                    f"{name} has {path.stat().st_size} bytes, written were {record['bytes']}",
                )
            )
        if path.suffix == ".json" and record["bytes"] < SMALL and sha256(path) != record["sha256"]:
            raise ValueError(_damaged(folder, f"{name} was changed since it was written"))


def _damaged(folder: Path, reason: str) -> str:
    return (
        f"the model folder {folder} is damaged: {reason}; delete that folder and load the model"
        " again"
    )


def _require_agreement(folder: Path, headers: Collection[Mapping[str, Any]]) -> None:
    """Compare a configuration with the headers of the weights; nothing is built.

    Args:
        headers: of the safetensors.

    Raises:
        ValueError: for more layers or larger tables than the files can hold, and for weights that
            are quantised in a way that Transformers does not know.
    """
    config = settings_or_none(folder / "config.json") or {}  # Transformers reports a broken one
    _require_known(folder, config.get("quantization_config"))
    if headers and not any(_others(folder)) and not (folder / REST).is_file():
        told = config.get("text_config")
        _require_sizes(folder, told if isinstance(told, dict) else config, headers)


def require_all_used(
    folder: Path,
    unused: Iterable[str],
    linear: Collection[str],
    lists: Mapping[str, int],
    extra: int = 0,
) -> None:
    """Raise ValueError if a file has unused tensors that would change the model's output.

    These are layers beyond those of the configuration, and what lies beside the weight of a linear
    layer, as biases and the scales of quantised weights do.

    Args:
        unused: names of tensors that the model has no place for.
        linear: names of the model's linear layers.
        lists: how many layers each of its lists has, by name.
        extra: layers behind them that other programs draft with.
    """
    for name in sorted(unused):
        above, _, own = name.rpartition(".")
        if above in linear:
            raise ValueError(
                f"the model in {folder} has {name}, and by its config.json there is no {own}; put"
                " back the config.json that belongs to the weights"
            )
        count = _layers_above(name, lists, extra)
        if count is not None:
            raise ValueError(
                f"the model in {folder} has {name}, and its config.json asks for {count} layers;"
                " put back the config.json that belongs to the weights"
            )


def _layers_above(name: str, lists: Mapping[str, int], extra: int) -> int | None:
    """Number of layers in the list that a tensor's name indexes beyond its end; None if it does
    not.
    """
    parts = name.split(".")
    for place, part in enumerate(parts):
        count = lists.get(".".join(parts[:place])) if part.isdecimal() else None
        if count is not None and int(part) >= count + extra:
            return count
    return None


def require_no_adapter(folder: Path) -> None:
    """Raise ValueError for a PEFT adapter that Transformers would leave out."""
    if not (folder / ADAPTER).is_file():
        return
    own = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    own = [path for path in own if not path.name.startswith(ADAPTER_WEIGHTS)]
    if not own or not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is a PEFT adapter without a model; {NAME_MODEL}")
    raise ValueError(
        f"{folder} has a PEFT adapter beside its model, which would be left out; move {ADAPTER} and"
        f" {ADAPTER_WEIGHTS}* into a folder of their own and name it with --adapter, or {MERGE}"
    )


def _others(folder: Path) -> Iterable[Path]:
    """Weight files without a header of sizes."""
    kinds = (path for pattern in WEIGHTS for path in folder.glob(pattern))
    return (path for path in kinds if path.suffix != ".safetensors")


def _require_known(folder: Path, told: object) -> None:
    if told is None:
        return
    method = told.get("quant_method") if isinstance(told, Mapping) else None
    if method == "mxfp4":
        return
    known = backend("a model whose weights are quantised by its config.json").quantisations()
    older = isinstance(told, Mapping) and any(f"load_in_{bits}bit" in told for bits in (4, 8))
    if not older and (not isinstance(method, str) or method not in known):
        raise ValueError(
            f"the weights in {folder} are quantised as {method or told!r:.60} by its config.json,"
            " which this Transformers does not know; take the model in floats or as a GGUF file, or"
            " update Transformers"
        )


def _require_sizes(
    folder: Path, config: Mapping[str, Any], headers: Iterable[Mapping[str, Any]]
) -> None:
    """Raise ValueError for more weights than files of these sizes can hold."""
    tensors = {name for header in headers for name in header}
    holds = PACKED * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    layers, width = (_first(config, names) for names in (LAYERS, WIDTH))
    if layers > len(tensors):
        raise ValueError(
            f"{folder / 'config.json'} asks for {layers} layers, and the weights are"
            f" {len(tensors)} tensors; put back the config.json that belongs to the weights"
        )
    for name in ("vocab_size", "intermediate_size", "ffn_dim", "n_inner", *WIDTH):
        if _first(config, (name,)) * max(width, 1) > holds:
            raise ValueError(
                f"{folder / 'config.json'} says {name} {config[name]}, which is more than the"
                " weights hold; put back the config.json that belongs to the weights"
            )


def _first(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """Size under the first of its names that is present; 0 if none is, or it is no size."""
    found = next((config[name] for name in names if name in config), 0)
    return found if isinstance(found, int) else 0
