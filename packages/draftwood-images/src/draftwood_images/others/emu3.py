"""Emu3 of Transformers (Wang et al. 2024, arXiv:2409.18869) draws."""

from typing import Any

import numpy as np
import torch

from draftwood_images.codec import Codes, Pixels
from draftwood_images.drawing_model import DrawingModel, Prompt
from draftwood_images.layout import PictureLayout
from draftwood_images.others.text_side import pixels_of, writing_model

GUIDANCE, TOP_K = 3.0, 2048
"""Values of its authors."""
SIDE = 90
"""Codes across a picture of its authors."""


def emu3(
    name: str, hf_model: Any, prompt: Prompt, instead: tuple[int, ...], begin: int, side: int = SIDE
) -> DrawingModel:
    """Let an ``Emu3ForConditionalGeneration`` draw.

    Args:
        name: as its user named it.
        hf_model: the model.
        prompt: tokens of a name, ``begin`` the last.
        instead: tokens that stand for any picture, without ``begin``.
        begin: token behind the size of a picture, which opens it.
        side: codes across.
    """
    mapping = hf_model.model.vocabulary_mapping
    codes = range(max(mapping.img2bpe) + 1)
    vocabulary = hf_model.config.text_config.vocab_size
    layout = PictureLayout(
        side,
        side,
        vocabulary,
        begin,
        tuple(mapping.img2bpe[code] for code in codes),
        mapping.eol_token_id,
    )

    def paint(grid: Codes) -> Pixels:
        given = torch.from_numpy(np.asarray(grid))[None].to(hf_model.device)
        with torch.no_grad():
            found = hf_model.model.vqmodel.decode(given)
        return pixels_of(found.reshape(-1, *found.shape[-3:])[0])

    decoder = hf_model.model.text_model
    return DrawingModel(
        name,
        writing_model(decoder, decoder.embed_tokens, hf_model.lm_head, vocabulary),
        layout,
        prompt,
        lambda tokens: instead,
        paint,
        hf_model.model.vqmodel.quantize.embedding.weight.detach().float().cpu().numpy(),
        GUIDANCE,
        TOP_K,
    )
