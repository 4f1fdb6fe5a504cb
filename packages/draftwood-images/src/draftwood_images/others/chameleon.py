"""Chameleon of Transformers (2024, arXiv:2405.09818), and what was trained from it, draws."""

from typing import Any

import numpy as np
from jaxtyping import Float

from draftwood_images.codec import Codes, Pixels
from draftwood_images.drawing_model import DrawingModel, Prompt
from draftwood_images.layout import PictureLayout
from draftwood_images.others.text_side import writing_model

GUIDANCE, TOP_K = 3.0, 2000
"""Values of Lumina-mGPT."""
SIDE = 32


def chameleon(
    name: str, hf_model: Any, prompt: Prompt, instead: tuple[int, ...], begin: int, side: int = SIDE
) -> DrawingModel:
    """Let a ``ChameleonForConditionalGeneration`` draw.

    Transformers masks its codes away, and has no decoder of its pictures: codes are drawn from the
    head itself, and painted in false colours.

    Args:
        name: as its user named it.
        hf_model: the model.
        prompt: tokens of a name, ``begin`` the last.
        instead: tokens that stand for any picture, without ``begin``.
        begin: token that opens a picture.
        side: codes across.
    """
    mapping = hf_model.model.vocabulary_mapping
    tokens = tuple(mapping.img2bpe[code] for code in range(max(mapping.img2bpe) + 1))
    vocabulary = hf_model.config.vocab_size
    vectors = hf_model.model.vqmodel.quantize.embedding.weight.detach().float().cpu().numpy()
    colours = false_colours(vectors)
    decoder = hf_model.model
    return DrawingModel(
        name,
        writing_model(decoder, decoder.embed_tokens, hf_model.lm_head, vocabulary),
        PictureLayout(side, side, vocabulary, begin, tokens),
        prompt,
        lambda given: instead,
        lambda grid: painted(colours, grid),
        vectors,
        GUIDANCE,
        TOP_K,
    )


def false_colours(vectors: Float[np.ndarray, "codes size"]) -> Float[np.ndarray, "codes 3"]:
    """A colour for each code, by the three directions in which the codebook is widest."""
    centred = vectors - vectors.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    places = centred @ directions[:3].T
    places = np.pad(places, ((0, 0), (0, 3 - places.shape[1])))
    span = np.maximum(places.max(0) - places.min(0), 1e-9)
    return (places - places.min(0)) / span * 255


def painted(colours: Float[np.ndarray, "codes 3"], grid: Codes) -> Pixels:
    """Squares of colours."""
    return np.rint(colours[np.asarray(grid)]).astype(np.uint8).repeat(8, 0).repeat(8, 1)
