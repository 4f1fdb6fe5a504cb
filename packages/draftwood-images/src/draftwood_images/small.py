"""Random models of pictures that are small enough to prove things on."""

from typing import Any, Literal

import numpy as np

from draftwood.models.configuration import ModelConfiguration
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.native import NativeModel
from draftwood.models.shapes import tensor_shapes
from draftwood_images.codec import GreyCodec
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


def random_llama(vocab: int, seed: int = 0, dim: int = 32) -> DescribedModel:
    """A Llama of two layers with random weights."""
    told: dict[str, Any] = {
        **{"model_type": "llama", "vocab_size": vocab, "hidden_size": dim},
        **{"intermediate_size": 2 * dim, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2},
        **{"max_position_embeddings": 128, "tie_word_embeddings": False},
    }
    config, chance = ModelConfiguration(told), np.random.default_rng(seed)
    weights = {
        name: chance.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in tensor_shapes(config).items()
    }
    return DescribedModel(describe(told, weights.get), config, frozenset(), "float32", Cpu())


def small_picture_model(
    products: Literal["float32", "int8"] = "float32", seed: int = 0
) -> PictureModel:
    """A model that paints 6 x 7 grey levels for five words."""
    model = NativeModel(random_llama(SETTINGS.vocabulary, seed), products)
    return PictureModel(model, SETTINGS, GreyCodec(CODES))

