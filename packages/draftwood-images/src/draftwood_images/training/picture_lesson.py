"""PictureTask of a transformer: pictures of a set as words and codes, also shifted and mirrored."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from draftwood_images.picture_model import PictureSettings
from draftwood_images.training.autoencoder import Autoencoder
from draftwood_images.training.codec_lesson import rare_bases
from draftwood_images.training.named import PictureSet
from draftwood_images.training.transformer import PictureTransformer, TransformerSizes
from draftwood_train.precision import fast_products

MIRRORED, SHIFTED = "mirrored", "shifted"
"""Words of pictures that training changed, so that others stay as they are."""
SIDED = {"left", "right", "leftwards", "rightwards", "flag", "sign", "squared", "symbol", "clock"}
"""Words of pictures that are not mirrored."""
FARTHEST = 3
"""Pixels that a picture is shifted by, at most."""
DROPPED = 0.1
"""Share of pictures whose words are left out, and of words of others."""
JUDGED = 256
WHOLE = 7
"""One place in so many learns that no other token stands within a picture."""
PADDING = -100
"""Target of places that no loss looks at."""


class Codes:
    """Source of codes: an autoencoder, or grey levels.

    Args:
        autoencoder: None takes grey levels.
        levels: of these.
    """

    def __init__(self, autoencoder: Autoencoder | None, levels: int = 0) -> None:
        self._autoencoder, self._levels = autoencoder, levels
        if autoencoder is not None:
            autoencoder.eval()

    def of(self, pixels: Tensor) -> Int[Tensor, "pictures rows columns"]:
        """Codes of pictures."""
        with torch.no_grad():
            if self._autoencoder is not None:
                return self._autoencoder.encoded(pixels)
            return (pixels.float().mean(3) * ((self._levels - 1) / 255)).round().long()


class PictureLesson:
    """PictureTask of a transformer.

    Args:
        batch: pictures.
        changes: whether to show pictures shifted and mirrored as well.
        seed: of new weights.
    """

    name = "transformer"

    def __init__(
        self,
        pictures: PictureSet,
        codes: Codes,
        settings: PictureSettings,
        sizes: TransformerSizes,
        batch: int = 32,
        changes: bool = True,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.module = PictureTransformer(sizes)
        self.facts: Mapping[str, Any] = {**sizes.facts, "batch": batch, "changes": changes}
        self.settings, self._codes = settings, codes
        self._batch, self._changes = batch, changes
        self._ids = {word: settings.first_word + at for at, word in enumerate(settings.words)}
        held = pictures.is_held_out
        self._pixels, self._words = torch.from_numpy(pictures.pixels), pictures.words
        self._train, self._held = np.flatnonzero(~held), np.flatnonzero(held)
        self._weights = rare_bases([pictures.bases[int(at)] for at in self._train])

    def loss(self, progress: float) -> Tensor:
        """Mean nats per code on the next batch."""
        chosen = torch.multinomial(self._weights, self._batch, replacement=True)
        places = self._train[chosen.numpy()]
        pixels, words = self._pixels[places], [self._words[place] for place in places]
        if self._changes:
            pixels, words = changed(pixels, words)
        kept = [self._dropped(each) for each in words]
        tokens, targets = self._rows(kept, self._codes.of(pixels))
        return self._nats(tokens, targets, whole=WHOLE).mean()

    def judge(self) -> dict[str, float]:
        """Bits per code of either part, behind their mean, negative so that more is better.

        Names that were shown count as much as others: they are what a model is asked to draw.
        """
        held, train = self._bits(self._held), self._bits(self._train)
        return {"score": -(held + train) / 2, "held-out bits": held, "train bits": train}

    def _bits(self, places: np.ndarray) -> float:
        places = places[:: max(1, -(-len(places) // JUDGED))]
        nats = []
        for part in np.array_split(places, -(-len(places) // self._batch)):
            words = [self._known(self._words[place]) for place in part]
            rows = self._rows(words, self._codes.of(self._pixels[part]))
            nats.append(self._nats(*rows))
        return float(torch.cat(nats).mean()) / math.log(2) if nats else math.nan

    def _nats(self, tokens: Tensor, targets: Tensor, whole: int = 0) -> Tensor:
        """Nats of each code, among codes.

        Args:
            whole: one in so many of them is told from all other tokens as well; 0 for none.
        """
        first, count = self.settings.first_code, self.settings.codes
        asked = targets != PADDING
        found = targets[asked]
        apart = torch.arange(len(found)) % whole == 0 if whole else torch.zeros(len(found)).bool()
        with fast_products():
            states = self.module(tokens)[asked]
            among = self.module.logits(states[~apart], slice(first, first + count))
            told = self.module.logits(states[apart], slice(None))
        nats = functional.cross_entropy(among.float(), found[~apart] - first, reduction="none")
        if not whole:
            return nats
        others = functional.cross_entropy(told.float(), found[apart], reduction="none")
        return torch.cat([nats, others])

    def _known(self, words: Sequence[str]) -> list[int]:
        return [self._ids[word] for word in words if word in self._ids] or [
            self.settings.unconditional
        ]

    def _dropped(self, words: Sequence[str]) -> list[int]:
        """Tokens of words, some of which are left out, or all."""
        chances = torch.rand(len(words) + 1).tolist()
        if chances[0] < DROPPED:
            return [self.settings.unconditional]
        kept = [word for word, chance in zip(words, chances[1:], strict=True) if chance > DROPPED]
        return self._known(kept or words)

    def _rows(self, words: Sequence[list[int]], codes: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens of pictures, and the token behind each place that a code stands behind."""
        flat = codes.reshape(len(codes), -1) + self.settings.first_code
        longest = max(map(len, words)) + flat.shape[1]
        tokens = torch.full((len(words), longest), self.settings.begin)
        targets = torch.full((len(words), longest), PADDING)
        for row, (known, picture) in enumerate(zip(words, flat, strict=True)):
            start = len(known)
            tokens[row, :start] = torch.tensor(known)
            tokens[row, start + 1 : start + len(picture)] = picture[:-1]
            targets[row, start : start + len(picture)] = picture
        return tokens, targets


def changed(
    pixels: Tensor, words: Sequence[tuple[str, ...]]
) -> tuple[Tensor, list[tuple[str, ...]]]:
    """Mirror some pictures and shift some, and say so behind their words."""
    pixels, told = pixels.clone(), list(words)
    mirror, shift = (torch.rand(2, len(words)) < torch.tensor([[0.3], [0.5]])).tolist()
    for row, known in enumerate(words):
        if mirror[row] and not SIDED.intersection(known):
            pixels[row] = pixels[row].flip(1)
            told[row] = (*told[row], MIRRORED)
        if shift[row]:
            away = torch.randint(-FARTHEST, FARTHEST + 1, (2,)).tolist()
            pixels[row] = pixels[row].roll(away, (0, 1))
            told[row] = (*told[row], SHIFTED)
    return pixels, told


def settings_for(pictures: PictureSet, grid: int, codes: int) -> PictureSettings:
    """Lay out token ids: codes, the two marks, words."""
    held: Bool[np.ndarray, " pictures"] = pictures.is_held_out
    shown = {
        word for words, out in zip(pictures.words, held, strict=True) if not out for word in words
    }
    return PictureSettings(
        rows=grid,
        columns=grid,
        first_code=0,
        codes=codes,
        begin=codes,
        unconditional=codes + 1,
        words=tuple(sorted({*shown, MIRRORED, SHIFTED})),
        first_word=codes + 2,
    )
