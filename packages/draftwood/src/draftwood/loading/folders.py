"""Model folders on disk: written whole or not at all, checked before they are read.

A folder that draftwood makes is built under a hidden name beside its destination and renamed at the
end, so a process that dies half-way leaves nothing under the real name. `draftwood.json` inside
says where the weights came from and how large every file must be.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from draftwood.loading.agreement import require_agreement, require_no_adapter
from draftwood.storage.atomic import MANIFEST, sha256
from draftwood.storage.safetensors import read_header
from draftwood.storage.weights import WEIGHTS

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
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise FileNotFoundError(
            f"{folder} has no tokenizer: a model folder needs one of {', '.join(TOKENIZERS)}"
        )
    for path in weights:
        if path.suffix == ".safetensors":
            read_header(path)
    require_agreement(folder)


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


def weight_bytes(folder: Path, dtype: torch.dtype | None = None) -> int:
    """Bytes of a folder's weights in memory, in this type or as they are stored."""
    total = 0
    for path in (path for pattern in WEIGHTS for path in folder.glob(pattern)):
        if dtype is None or path.suffix != ".safetensors":
            total += path.stat().st_size
        else:
            shapes = (each["shape"] for each in read_header(path).values())
            total += sum(map(math.prod, shapes)) * dtype.itemsize
    return total


def _check_shards(folder: Path) -> None:
    """Look for the files that an index of sharded weights names."""
    for path in folder.glob("*.index.json"):
        try:
            named = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{path} cannot be read as an index of weights; fetch the file again"
            ) from None
        missing = [name for name in named if not (folder / name).is_file()]
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
