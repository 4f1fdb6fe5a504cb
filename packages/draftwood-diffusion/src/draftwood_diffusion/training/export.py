"""Write a converted model as a folder that loads natively: in bfloat16, or in blocks of 8 bits."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from draftwood.loading.folders import REST
from draftwood.loading.gguf_blocks import PLACES, StoredMatrix
from draftwood.loading.native_folders import CONFIG, GENERATION
from draftwood.loading.tensors import cast
from draftwood.storage.atomic import replace_folder, write_manifest
from draftwood.storage.safetensors import write_arrays
from draftwood.storage.weights import read_settings, save_settings
from draftwood_diffusion.masked_model import DiffusionSettings
from draftwood_diffusion.settings import as_told
from draftwood_diffusion.training.folder import BESIDE, WEIGHTS
from draftwood_diffusion.training.vocabulary import TOKENIZER

Weights = Mapping[str, np.ndarray]
BLOCKS = "blocks.bin"
FORMAT, BLOCK = "Q8_0", 32
"""Blocks of so many weights: their scale as a half float, and 8 bits each."""


def write_converted(
    begun: Path,
    weights: Weights,
    settings: DiffusionSettings,
    folder: Path,
    source: str,
    in_8_bits: bool = False,
) -> None:
    """Write a converted model into a folder, in the place of an earlier one.

    Args:
        begun: folder that ``begin_folder`` wrote, which describes the model.
        weights: by Transformers' names.
        source: of the weights, for the manifest.
        in_8_bits: whether matrices are rounded to 8 bits.
    """
    told = {**read_settings(begun / CONFIG), **as_told(settings)}
    told["dtype"] = "float32" if in_8_bits else "bfloat16"

    def build(partial: Path) -> None:
        save_settings(partial, {CONFIG: told, GENERATION: read_settings(begun / GENERATION)})
        known = json.loads((begun / TOKENIZER).read_text(encoding="utf-8"))
        text = json.dumps(known, ensure_ascii=False, separators=(",", ":"))
        (partial / TOKENIZER).write_text(text, encoding="utf-8")
        for name in BESIDE:
            if (begun / name).is_file():
                (partial / name).write_bytes((begun / name).read_bytes())
        if in_8_bits:
            _write_blocks(partial, weights)
        else:
            halves = {name: cast(each, "bfloat16") for name, each in weights.items()}
            write_arrays(partial / WEIGHTS, halves)
        facts: dict[str, Any] = {"quantisation": FORMAT if in_8_bits else None, "weights": None}
        write_manifest(partial, source, facts)

    replace_folder(folder, build)


def _write_blocks(folder: Path, weights: Weights) -> None:
    """Matrices in blocks, one file of them, and the rest in floats."""
    matrices, small = list[StoredMatrix](), dict[str, np.ndarray]()
    with (folder / BLOCKS).open("wb") as file:
        for name, each in weights.items():
            if each.ndim != 2:
                small[name] = np.asarray(each, np.float32)
                continue
            packed = blocks_of_8_bits(each)
            rows, row_bytes = packed.shape
            module = name.removesuffix(".weight")
            place = (0, file.tell(), rows, row_bytes, each.shape[1], None)
            matrices.append(StoredMatrix(module, FORMAT, *place))
            file.write(packed.tobytes())
    write_arrays(folder / REST, small)
    places = {"files": [BLOCKS], "states": {}, "matrices": [asdict(each) for each in matrices]}
    (folder / PLACES).write_text(json.dumps(places, indent=0) + "\n", encoding="utf-8")


def blocks_of_8_bits(weights: Float[np.ndarray, "rows inputs"]) -> UInt8[np.ndarray, "rows bytes"]:
    """Round a matrix to blocks of 32 weights in 8 bits with a scale each (Q8_0 of llama.cpp).

    Raises:
        ValueError: for rows that are no multiple of a block.
    """
    rows, inputs = weights.shape
    if inputs % BLOCK:
        raise ValueError(
            f"rows of blocks have a multiple of {BLOCK} weights, not {inputs}; leave --int8 out"
        )
    blocks = np.asarray(weights, np.float32).reshape(rows, -1, BLOCK)
    scales = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    wide = scales.astype(np.float32)
    rounded = np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide > 0).round()
    codes = rounded.clip(-127, 127).astype(np.int8)
    packed = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=-1)
    return packed.reshape(rows, -1)
