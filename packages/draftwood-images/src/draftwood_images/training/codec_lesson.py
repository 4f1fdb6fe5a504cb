"""PictureTask of an autoencoder: pictures of a set, shifted and mirrored."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood_images.training.autoencoder import Autoencoder, AutoencoderSizes, as_input, psnr
from draftwood_images.training.named import PictureSet
from draftwood_train.precision import fast_products

JUDGED = 384
"""Most pictures that are judged of either part."""
SHIFT = 3
"""Pixels that a picture is shifted by, at most."""


class CodecLesson:
    """PictureTask of an autoencoder.

    Args:
        batch: pictures.
        seed: of new weights.
    """

    name = "autoencoder"

    def __init__(
        self, pictures: PictureSet, sizes: AutoencoderSizes, batch: int = 64, seed: int = 0
    ) -> None:
        torch.manual_seed(seed)
        self.module = Autoencoder(sizes)
        self.facts: Mapping[str, Any] = {**asdict(sizes), "batch": batch}
        self._batch = batch
        held = pictures.is_held_out
        self._train = torch.from_numpy(pictures.pixels[~held])
        self._weights = rare_bases([pictures.bases[int(at)] for at in np.flatnonzero(~held)])
        self._judged = {
            "held-out": _some(torch.from_numpy(pictures.pixels[held])),
            "train": _some(self._train),
        }

    def loss(self, progress: float) -> Tensor:
        """Loss on the next batch."""
        chosen = torch.multinomial(self._weights, self._batch, replacement=True)
        pixels = as_input(self._train[chosen])
        down, right = (int(each) for each in torch.randint(-SHIFT, SHIFT + 1, (2,)))
        pixels = pixels.roll((down, right), (2, 3))
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(3)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with fast_products():
            return self.module.loss(pixels, progress)

    def judge(self) -> dict[str, float]:
        """Decibels of what is painted from codes, and how many codes are in use."""
        figures = {}
        used = set[int]()
        for part, pixels in self._judged.items():
            codes = self.module.encoded(pixels)
            used |= set(codes.unique().tolist())
            if len(pixels):
                figures[f"{part} dB"] = psnr(self.module.decoded(codes), as_input(pixels))
        return {**figures, "codes in use": float(len(used))}


def _some(pixels: Tensor) -> Tensor:
    return pixels[:: max(1, -(-len(pixels) // JUDGED))]


def rare_bases(bases: Sequence[str]) -> Float[Tensor, " pictures"]:
    """Weights of pictures in draws: a base counts as the root of how many pictures it has."""
    counts = Counter(bases)
    return torch.tensor([counts[base] ** -0.5 for base in bases])
