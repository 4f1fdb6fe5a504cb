"""Folders of GPT-OSS whose experts are stored in MXFP4, run without making floats of them.

Transformers gives each matrix of experts codes and scales of its own (``down_proj_blocks``,
``down_proj_scales``), and makes bfloat16 of them on CPUs, which takes four times the memory.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from draftwood.loading.folders import understood, weight_bytes
from draftwood.native.matrix import Blocks
from draftwood.pytorch.loading import skeleton
from draftwood.pytorch.models.experts import DOWN, GATE_UP, mixtures
from draftwood.storage.memory import require_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return config["quantization_config"]["quant_method"] == "mxfp4"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_mxfp4(folder: Path) -> "PreTrainedModel":
    """The model in such a folder; the native path alone runs it.

    Raises:
        ValueError: for tensors that are missing, or of other shapes than the configuration asks
            for.
        MemoryError: where the weights do not fit into memory.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig, GenerationConfig

    require_memory(weight_bytes(folder), str(folder))
    with understood(folder):
        config: Any = AutoConfig.from_pretrained(folder)
        del config.quantization_config  # the model is made without weights
        model = skeleton.skeleton(config, torch.bfloat16)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        tensors = dict[str, torch.Tensor]()
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(path)
        matrices = dict[str, Blocks]()
        for name in mixtures(model):
            gate_up = _taken(tensors, f"{name}.{GATE_UP}")
            matrices[f"{name}.gate"] = gate_up[::2]
            matrices[f"{name}.up"] = gate_up[1::2]
            matrices[f"{name}.down"] = _taken(tensors, f"{name}.{DOWN}")
        skeleton.fill(model, tensors, matrices)
    return model


def _taken(tensors: dict[str, torch.Tensor], name: str) -> ScalesApart:
    """Take the matrices of all experts, below each other, out of the tensors."""
    codes, scales = (tensors.pop(f"{name}{ending}", None) for ending in (CODES, SCALES))
    if codes is None or scales is None:
        raise ValueError(f"its tensors {name}{CODES} and {name}{SCALES} are missing")
    if codes.shape != (*scales.shape, IN_BLOCK // 2):
        raise ValueError(
            f"its tensors {name}{CODES} and {name}{SCALES} do not fit together:"
            f" {tuple(codes.shape)} and {tuple(scales.shape)}"
        )
    rows, blocks = codes.shape[0] * codes.shape[1], codes.shape[2]
    return ScalesApart(
        FORMAT,
        codes.reshape(rows, -1).numpy(),
        blocks * IN_BLOCK,
        scales=scales.reshape(rows, blocks).numpy(),
    )
