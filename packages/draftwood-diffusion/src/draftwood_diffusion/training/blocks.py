"""Matrices in blocks of 8 bits, beside a description that the loader of GGUF files reads."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from draftwood.loading.folders import REST
from draftwood.loading.gguf_blocks import PLACES, StoredMatrix
from draftwood.storage.safetensors import map_arrays, write_arrays

Weights = Mapping[str, np.ndarray]
BLOCKS = "blocks.bin"
FORMAT, BLOCK = "Q8_0", 32
"""Blocks of so many weights: their scale as a half float, and 8 bits each."""
BLOCK_BYTES = BLOCK + 2


def write_blocks(folder: Path, weights: Weights) -> None:
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


def floats_of_blocks(folder: Path) -> dict[str, np.ndarray]:
    """Read the weights that ``write_blocks`` wrote, in float32."""
    places = json.loads((folder / PLACES).read_text(encoding="utf-8"))["matrices"]
    content = np.fromfile(folder / BLOCKS, np.uint8)
    found = {name: np.array(each, np.float32) for name, each in map_arrays(folder / REST).items()}
    for told in places:
        each = StoredMatrix(**told)
        packed = content[each.offset : each.end].reshape(each.rows, -1, BLOCK_BYTES)
        scales = packed[..., :2].copy().view(np.float16).astype(np.float32)
        codes = packed[..., 2:].copy().view(np.int8).astype(np.float32)
        found[f"{each.module}.weight"] = (codes * scales).reshape(each.rows, -1)
    return found
