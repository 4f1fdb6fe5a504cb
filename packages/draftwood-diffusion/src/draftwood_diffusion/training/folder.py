"""Folder of a model under conversion: settings, weights, and a tokenizer that knows the mask."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.loading.native_folders import CONFIG, GENERATION, read_folder
from draftwood.loading.tensors import mapped
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.shapes import tensor_shapes
from draftwood.storage.atomic import replace_folder
from draftwood.storage.safetensors import write_arrays
from draftwood.storage.weights import save_settings
from draftwood_diffusion.training.vocabulary import TOKENIZER, CutVocabulary

WEIGHTS = "model.safetensors"
BESIDE = ("tokenizer_config.json",)
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
BY_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")


def begin_folder(source: Path, vocabulary: CutVocabulary, folder: Path) -> None:
    """Write the model of a folder with another vocabulary, in float32.

    Raises:
        ValueError: as ``read_folder``.
    """
    read = read_folder(source, "float32")
    now = {before: number for number, before in enumerate(vocabulary.kept)}
    told = _renumbered(read.told, now)
    told |= {"vocab_size": vocabulary.size, "dtype": "float32"}
    names = tensor_shapes(ModelConfiguration(read.told))
    weights = {name: np.asarray(read.tensors(name), np.float32) for name in names}
    weights |= {name: vocabulary.rows(weights[name]) for name in BY_TOKEN if name in weights}

    def build(partial: Path) -> None:
        generation = _renumbered(read.generation or {}, now)
        save_settings(partial, {CONFIG: told, GENERATION: generation})
        write_arrays(partial / WEIGHTS, weights)
        text = json.dumps(vocabulary.tokenizer, ensure_ascii=False)
        (partial / TOKENIZER).write_text(text, encoding="utf-8")
        for name in BESIDE:
            if (source / name).is_file():
                (partial / name).write_bytes((source / name).read_bytes())

    replace_folder(folder, build)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Read the weights of a folder that ``begin_folder`` wrote, in float32."""
    return {name: np.array(each, np.float32) for name, each in mapped(folder).items()}


def _renumbered(settings: Mapping[str, Any], now: Mapping[int, int]) -> dict[str, Any]:
    """Settings whose special tokens have their new numbers."""

    def numbered(token: Any) -> Any:
        return [now[each] for each in token] if isinstance(token, list) else now[token]

    found = {name: numbered(settings[name]) for name in TOKENS if settings.get(name) is not None}
    return {**settings, **found}
