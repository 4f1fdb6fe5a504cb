"""Files of models: their names, settings in them, and paths for what was measured of weights."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.storage.home import home

WHOLE = "model.safetensors"
"""File of weights that are in one."""
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
SETTINGS = (
    *("*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges*"),
    "additional_chat_templates/*.jinja",
)
"""Further files that a model is read from."""


def read_settings(path: Path) -> dict[str, Any]:
    """Read a file that holds an object of JSON.

    Raises:
        OSError: where it cannot be read.
        ValueError: where it holds something else.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object")
    return found


def settings_or_none(path: Path) -> dict[str, Any] | None:
    """Read such a file; None where there is none, or it cannot be understood."""
    try:
        return read_settings(path)
    except (OSError, ValueError):
        return None


def save_settings(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write objects of JSON into a folder, by the names of their files."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def state_of(file: Path) -> list[int]:
    """Size and times of a file, one of which differs once it was written or replaced.

    Size and time of change alone do not tell: ``cp -p`` and ``rsync -t`` set them. Empty for a file
    that is not there.
    """
    try:
        found = file.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def stamps(folder: Path) -> list[tuple[str, list[int]]]:
    """Identity of the weights in a folder: paths, sizes and times."""
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    return [(str(file.resolve()), state_of(file)) for file in files]


def kept_for(
    kind: str, folder: Path, *further: object, suffix: str = ".safetensors"
) -> tuple[Path, str]:
    """Path for what was measured of the weights in a folder, and their digest.

    Other weights in the same folder give another path.
    """
    identity = (str(folder.resolve()), *further, stamps(folder))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name)[:60]
    return home() / kind / f"{name}-{digest}{suffix}", digest
