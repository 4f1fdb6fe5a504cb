"""Folder of a model under conversion: settings, weights, and a tokenizer that knows the mask."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.loading.tensors import cast, mapped
from draftwood.storage.atomic import replace_folder
from draftwood.storage.safetensors import write_arrays
from draftwood.storage.weights import read_settings, save_settings, settings_or_none
from draftwood_diffusion.training.blocks import BLOCKS, floats_of_blocks
from draftwood_diffusion.training.vocabulary import TOKENIZER, CutVocabulary

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
BESIDE = ("tokenizer_config.json",)
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
BY_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")


def begin_folder(source: Path, vocabulary: CutVocabulary, folder: Path) -> None:
    """Write the model of a folder with another vocabulary, in float32.

    Raises:
        ValueError: as ``read_source``.
    """
    read = read_source(source)
    now = {before: number for number, before in enumerate(vocabulary.kept)}
    told = _renumbered(read.told, now)
    told |= {"vocab_size": vocabulary.size, "dtype": "float32"}
    weights = dict(read.weights)
    weights |= {name: vocabulary.rows(weights[name]) for name in BY_TOKEN if name in weights}

    def build(partial: Path) -> None:
        generation = _renumbered(read.generation, now)
        save_settings(partial, {CONFIG: told, GENERATION: generation})
        write_arrays(partial / WEIGHTS, weights)
        text = json.dumps(vocabulary.tokenizer, ensure_ascii=False)
        (partial / TOKENIZER).write_text(text, encoding="utf-8")
        for name in BESIDE:
            if (source / name).is_file():
                (partial / name).write_bytes((source / name).read_bytes())

    replace_folder(folder, build)


@dataclass(frozen=True, eq=False)
class SourceModel:
    """A model to convert: its config.json and generation_config.json, and weights in float32."""

    told: Mapping[str, Any]
    generation: Mapping[str, Any]
    weights: Mapping[str, np.ndarray]


def read_source(folder: Path) -> SourceModel:
    """Read a folder of floats, or of a converted model in 8 bits.

    Raises:
        ValueError: for a folder without such weights.
    """
    if (folder / BLOCKS).is_file():
        told, generation = (read_settings(folder / name) for name in (CONFIG, GENERATION))
        return SourceModel(told, generation, floats_of_blocks(folder))
    told = read_settings(folder / CONFIG)
    weights = {name: cast(each, "float32") for name, each in mapped(folder).items()}
    if not weights:
        raise ValueError(
            f"{folder} has no weights in safetensors, which conversion reads; save the model so"
        )
    if told.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    return SourceModel(told, settings_or_none(folder / GENERATION) or {}, weights)


def begin_again(source: Path, folder: Path) -> None:
    """Write a converted model in float32, with the vocabulary that it has.

    Raises:
        ValueError: as ``read_source``.
    """
    read = read_source(source)

    def build(partial: Path) -> None:
        told = {**read.told, "dtype": "float32"}
        save_settings(partial, {CONFIG: told, GENERATION: read.generation})
        write_arrays(partial / WEIGHTS, read.weights)
        for name in (TOKENIZER, *BESIDE):
            if (source / name).is_file():
                (partial / name).write_bytes((source / name).read_bytes())

    replace_folder(folder, build)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Read the weights of a folder that ``begin_folder`` wrote, in float32."""
    return {name: np.array(each, np.float32) for name, each in mapped(folder).items()}


def _renumbered(settings: Mapping[str, Any], now: Mapping[int, int]) -> dict[str, Any]:
    """Settings whose special tokens have their new numbers."""

    def numbered(told: Any) -> Any:
        if isinstance(told, list):
            return [now[each] for each in told if each in now]
        return now.get(told)

    # a number of no token, as -1, has none now
    return {name: numbered(each) if name in TOKENS else each for name, each in settings.items()}
