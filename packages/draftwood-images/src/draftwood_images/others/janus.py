"""Janus of Transformers (Wu et al. 2024, arXiv:2410.13848) draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from draftwood_images.codec import Codes, Pixels
from draftwood_images.drawing_model import DrawingModel, Prompt
from draftwood_images.layout import PictureLayout
from draftwood_images.others.text_side import pixels_of, writing_model

GUIDANCE = 5.0
"""Scale of its authors, who cut nothing off."""


class BothVocabularies(nn.Module):
    """Output head of words and codes, of which codes alone can be drawn.

    Args:
        words: number of words.
        head: logits of codes.
    """

    def __init__(self, words: int, head: nn.Module) -> None:
        super().__init__()
        self.words, self.head = words, head

    def forward(self, states: Tensor) -> Tensor:
        codes = self.head(states)
        return torch.cat([codes.new_zeros(*codes.shape[:-1], self.words), codes], -1)


def janus(name: str, hf_model: Any, prompt: Prompt, begin: int, pad: int, bos: int) -> DrawingModel:
    """Let a ``JanusForConditionalGeneration`` draw; its codes stand behind its words.

    Args:
        name: as its user named it.
        hf_model: the model.
        prompt: tokens of a name, ``begin`` the last.
        begin: token that opens a picture.
        pad: token in the place of each one before it where there is no guidance.
        bos: token that stays then.
    """
    inner = hf_model.model
    words = hf_model.config.text_config.vocab_size
    codes = inner.generation_embeddings.num_embeddings
    with torch.no_grad():
        every = torch.arange(codes, device=hf_model.device)
        of_codes = hf_model.prepare_embeddings_for_image_generation(every)
        of_words = inner.language_model.get_input_embeddings().weight
        table = torch.cat([of_words, of_codes.to(of_words.dtype)])
    side = round(inner.vision_model.config.num_image_tokens**0.5)
    layout = PictureLayout(side, side, words + codes, begin, tuple(range(words, words + codes)))

    def instead(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(each if each == bos else pad for each in tokens[: tokens.index(begin)])

    def paint(grid: Codes) -> Pixels:
        given = torch.from_numpy(np.asarray(grid)).reshape(1, -1).to(hf_model.device)
        with torch.no_grad():
            return pixels_of(hf_model.decode_image_tokens(given)[0].permute(2, 0, 1))

    head = BothVocabularies(words, inner.generation_head)
    embedding = nn.Embedding.from_pretrained(table)
    vectors = nn.functional.normalize(inner.vqmodel.quantize.embedding.weight.detach(), dim=-1)
    return DrawingModel(
        name,
        writing_model(inner.language_model, embedding, head, words + codes),
        layout,
        prompt,
        instead,
        paint,
        vectors.float().cpu().numpy(),
        GUIDANCE,
        0,
    )
