"""Names of weight files, and paths for what was measured of them."""

import hashlib
import re
from pathlib import Path

from draftwood.storage.home import home

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
SETTINGS = ("*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges*")
"""Further files that a model is read from."""


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Identity of the weights in a folder: paths, sizes and times."""
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def kept_for(kind: str, folder: Path, *further: object) -> tuple[Path, str]:
    """Path for what was measured of the weights in a folder, and their digest.

    Other weights in the same folder give another path.
    """
    identity = (str(folder.resolve()), *further, stamps(folder))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name)[:60]
    return home() / kind / f"{name}-{digest}.safetensors", digest
