"""Write a converted model as a folder that loads natively: in bfloat16, or in blocks of 8 bits."""

import json
from pathlib import Path
from typing import Any

from draftwood.loading.tensors import cast
from draftwood.storage.atomic import replace_folder, write_manifest
from draftwood.storage.safetensors import write_arrays
from draftwood.storage.weights import read_settings, save_settings
from draftwood_diffusion.masked_model import DiffusionSettings
from draftwood_diffusion.settings import as_told
from draftwood_diffusion.training.blocks import FORMAT, Weights, write_blocks
from draftwood_diffusion.training.folder import BESIDE, CONFIG, GENERATION, WEIGHTS
from draftwood_diffusion.training.vocabulary import TOKENIZER


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
            write_blocks(partial, weights)
        else:
            halves = {name: cast(each, "bfloat16") for name, each in weights.items()}
            write_arrays(partial / WEIGHTS, halves)
        facts: dict[str, Any] = {"quantisation": FORMAT if in_8_bits else None, "weights": None}
        write_manifest(partial, source, facts)

    replace_folder(folder, build)
