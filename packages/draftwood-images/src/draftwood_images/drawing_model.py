"""All that drawing needs of a model, whoever made it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from draftwood.models.model import Model
from draftwood_images.codec import Codes, Pixels
from draftwood_images.guidance import GuidedModel
from draftwood_images.layout import PictureLayout
from draftwood_images.picture_model import PictureModel
from draftwood_images.words import prompt_of

Prompt = Callable[[str], list[int]]
"""Tokens of a name, up to what opens the picture."""


@dataclass(frozen=True, eq=False)
class DrawingModel:
    """A model of pictures as drawing sees it.

    Attributes:
        name: as its user named it.
        model: gives logits.
        layout: of its pictures.
        prompt: tokens of a name, up to what opens the picture.
        instead: tokens in the place of a prompt's words, without what opens the picture.
        paint: pixels of a grid of codes.
        vectors: of each code; None where nobody tells them.
        guidance, top_k: that suit it.
        words: that it knows; empty where they cannot be listed.
    """

    name: str
    model: Model
    layout: PictureLayout
    prompt: Prompt
    instead: Callable[[Sequence[int]], tuple[int, ...]]
    paint: Callable[[Codes], Pixels]
    vectors: Float[np.ndarray, "codes size"] | None
    guidance: float
    top_k: int
    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, found: PictureModel) -> "DrawingModel":
        """Take a model of this package."""
        settings = found.settings
        return cls(
            name,
            found.model,
            PictureLayout.of(settings, found.model.vocab_size),
            lambda words: prompt_of(settings, words),
            lambda prompt: (settings.unconditional,),
            found.codec.decode,
            np.asarray(found.codec.vectors),
            settings.guidance,
            settings.top_k,
            settings.words,
        )

    def guided(self, scale: float, prompt: Sequence[int]) -> Model:
        """The model of a prompt's pictures; without guidance that is the model itself."""
        if scale == 1.0:
            return self.model
        return GuidedModel(self.model, scale, (self.layout.begin,), self.instead(prompt))

    def vectors_by_token(self) -> Float[np.ndarray, "vocab size"] | None:
        """Vector of each token, not a number where a token is no code."""
        if self.vectors is None:
            return None
        table = np.full((self.layout.vocabulary, self.vectors.shape[1]), np.nan, np.float32)
        table[list(self.layout.tokens)] = self.vectors
        return table
