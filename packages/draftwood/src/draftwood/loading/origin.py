"""Origin of the weights in a folder.

It says how they were quantised, and gives a digest that tells them from others.
"""

import hashlib
from pathlib import Path

from draftwood.loading.gguf_blocks import files_of, is_blocks_folder
from draftwood.loading.gguf_files import digest
from draftwood.loading.packages import builtins
from draftwood.storage.atomic import MANIFEST, Facts, sha256
from draftwood.storage.weights import WEIGHTS, settings_or_none


def quantisation(folder: Path) -> str | None:
    """Format in which the weights of a folder that draftwood made were quantised before.

    For instance Q4_1; None if they were not.
    """
    return _facts(folder).get("quantisation")


def weights_digest(folder: Path) -> str | None:
    """SHA-256 of the file that the weights were converted from.

    Where there is none, one over the files that hold them. The folders that draftwood makes of one
    GGUF file in bfloat16 and float32 have the same. None for a folder without weights.
    """
    known = _facts(folder).get("weights")
    if known is None and is_blocks_folder(folder):
        return digest(files_of(folder))
    files = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
    if known is not None or not files:
        return known
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def _facts(folder: Path) -> Facts:
    """Read the manifest's facts about the weights.

    Manifests of earlier versions say it by their source alone.
    """
    manifest = settings_or_none(folder / MANIFEST) or {}
    if "source" not in manifest:
        return {}
    if "weights" in manifest:
        return {name: manifest.get(name) for name in ("quantisation", "weights")}
    known = (each.facts for each in builtins().values() if each.source == manifest["source"])
    return next(known, {})
