"""Random models of pictures that are small enough to prove things on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from draftwood.models.configuration import ModelConfiguration
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.native import NativeModel
from draftwood.models.shapes import tensor_shapes
from draftwood.storage.safetensors import write_arrays
from draftwood_images.codec import GreyCodec, write_codec
from draftwood_images.picture_model import PictureModel, PictureSettings

WORDS = ("red", "green", "apple", "pear", "round")
CODES, ROWS, COLUMNS = 8, 6, 7
SETTINGS = PictureSettings(
    rows=ROWS,
    columns=COLUMNS,
    first_code=len(WORDS) + 2,
    codes=CODES,
    begin=len(WORDS),
    unconditional=len(WORDS) + 1,
    words=WORDS,
    first_word=0,
    guidance=2.0,
    top_k=5,
)


def configuration(vocab: int = SETTINGS.vocabulary) -> dict[str, Any]:
    """Settings of a Llama of two layers, as its config.json has them."""
    return {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab},
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "float32"},
        **{"max_position_embeddings": 128, "tie_word_embeddings": False},
    }


def random_weights(told: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weights of such a Llama."""
    chance = np.random.default_rng(0)
    return {
        name: chance.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in tensor_shapes(ModelConfiguration(dict(told))).items()
    }


def small_picture_model(
    products: Literal["float32", "int8"] = "float32",
) -> PictureModel:
    """A model that paints 6 x 7 grey levels for five words."""
    told = configuration()
    decoder = describe(told, random_weights(told).get)
    config = ModelConfiguration(told)
    described = DescribedModel(decoder, config, frozenset(), "float32", Cpu())
    return PictureModel(NativeModel(described, products), SETTINGS, GreyCodec(CODES))


def write_small_model(folder: Path) -> Path:
    """Write the same model into a folder, as ``load_picture_model`` reads one."""
    folder.mkdir(parents=True, exist_ok=True)
    told = configuration()
    (folder / "config.json").write_text(json.dumps(told), encoding="utf-8")
    write_arrays(folder / "model.safetensors", random_weights(told))
    write_codec(GreyCodec(CODES), folder)
    SETTINGS.save(folder)
    return folder
