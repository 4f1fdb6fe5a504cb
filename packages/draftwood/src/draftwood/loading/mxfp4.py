"""Folders of GPT-OSS whose experts are stored in MXFP4, run without making floats of them.

Transformers gives each matrix of experts codes and scales of its own (``down_proj_blocks``,
``down_proj_scales``), and makes bfloat16 of them on CPUs, which takes four times the memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.native.matrix import Blocks
from draftwood.storage.weights import settings_or_none

FORMAT, IN_BLOCK = "MXFP4", 32
CODES, SCALES = "_blocks", "_scales"


@dataclass(frozen=True, eq=False)
class ScalesApart(Blocks):
    """Blocks with neighbouring codes in each byte, and with scales in a tensor of their own.

    Attributes:
        scales: one byte for each block of each stored row.
    """

    scales: np.ndarray = field(kw_only=True)

    def __getitem__(self, outputs: slice) -> "ScalesApart":  # type: ignore[override]
        stored, scales = self.stored[outputs], self.scales[outputs]
        return ScalesApart(self.format, stored, self.inputs, scales=scales)

    def read(self) -> np.ndarray:
        """As GGUF files have them: the scale, then the first 16 codes as low nibbles of 16 bytes
        and the others as high ones.
        """
        pairs = self.stored.reshape(*self.scales.shape, IN_BLOCK // 2)
        codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*self.scales.shape, IN_BLOCK)
        half = IN_BLOCK // 2
        nibbles = codes[..., :half] | codes[..., half:] << 4
        blocks = np.concatenate([self.scales[..., None], nibbles], axis=-1)
        return np.ascontiguousarray(blocks.reshape(len(blocks), -1))


def is_mxfp4(folder: Path) -> bool:
    """True if the experts of the model in a folder are stored in MXFP4."""
    return says_mxfp4(settings_or_none(folder / "config.json") or {})


def says_mxfp4(config: Mapping[str, Any]) -> bool:
    """True if a config.json says so."""
    told = config.get("quantization_config")
    return isinstance(told, dict) and told.get("quant_method") == "mxfp4"


def joined(arrays: Mapping[str, np.ndarray], name: str) -> ScalesApart:
    """The matrices of all experts, below each other.

    Args:
        arrays: by their names in a folder, in bytes.

    Raises:
        ValueError: for tensors that are missing, or do not fit together.
    """
    codes, scales = (arrays.get(f"{name}{ending}") for ending in (CODES, SCALES))
    if codes is None or scales is None:
        raise ValueError(f"its tensors {name}{CODES} and {name}{SCALES} are missing")
    if codes.shape != (*scales.shape, IN_BLOCK // 2):
        raise ValueError(
            f"its tensors {name}{CODES} and {name}{SCALES} do not fit together:"
            f" {codes.shape} and {scales.shape}"
        )
    rows, blocks = codes.shape[0] * codes.shape[1], codes.shape[2]
    return ScalesApart(
        FORMAT,
        codes.reshape(rows, -1),
        blocks * IN_BLOCK,
        scales=scales.reshape(rows, blocks),
    )
