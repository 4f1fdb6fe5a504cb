"""Models of tests that call themselves masked-diffusion models."""

import json
import shutil
from pathlib import Path

MASK = 95
"""The last of their letters, "~"."""


def masked_copy(target: str, folder: Path) -> str:
    """The same weights in a folder that fills masks."""
    copy = folder / "filling"
    shutil.copytree(target, copy)
    told = json.loads((copy / "config.json").read_text())
    told["draftwood_diffusion"] = {"mask_token": MASK, "block_length": 4}
    (copy / "config.json").write_text(json.dumps(told))
    return str(copy)
