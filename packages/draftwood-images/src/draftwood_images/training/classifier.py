"""Classifier of pictures by their base, which tells how well drawn ones are recognised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

from draftwood.storage.atomic import write_file
from draftwood_images.codec import Codec
from draftwood_images.training.autoencoder import as_input, gathered
from draftwood_images.training.codec_lesson import rare_bases
from draftwood_images.training.named import PictureSet
from draftwood_train.precision import fast_products

WIDTH = 96
FEATURES = 128
FARTHEST = 3
LEAST = 3
"""Pixels across the smallest picture that is classified: two halvings leave one place of it."""
PAINTED = 0.5
"""Share of a batch that is shown as the codec paints it."""


class RecognitionNetwork(nn.Module):
    """Convolutions over squares of pixels; the last state before the classes is the features."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.size, self.square = size, (4 if size % 16 == 0 else 1)
        self.first = nn.Conv2d(3 * self.square**2, WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1)
        self.third = nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1)
        side = -(-(size // self.square) // 2) // 2
        self.features = nn.Linear(2 * WIDTH * side * side, FEATURES)
        self.drop = nn.Dropout(0.3)
        self.lm_head = nn.Linear(FEATURES, classes)

    def seen(self, pixels: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 128"]:
        """Features of pictures."""
        x = functional.gelu(self.first(gathered(pixels, self.square)))
        x = functional.gelu(self.second(x))
        x = functional.max_pool2d(functional.gelu(self.third(x)), 2)
        return functional.gelu(self.features(x.flatten(1)))

    def forward(self, pixels: Float[Tensor, "batch 3 height width"]) -> Tensor:
        return self.lm_head(self.drop(self.seen(pixels)))


@dataclass(frozen=True, eq=False)
class Classifier:
    """Trained classifier.

    Attributes:
        bases: by class.
        base_of: base of each name, its words joined by spaces.
        figures: shares of pictures whose base it finds, painted by the codec and real.
    """

    network: RecognitionNetwork
    bases: tuple[str, ...]
    base_of: Mapping[str, str]
    figures: Mapping[str, float]

    def write(self, file: Path) -> None:
        """Write the classifier to a file.

        Raises:
            OSError: where the disk refuses.
        """
        weights = self.network.state_dict()
        told = {"weights": weights, "size": self.network.size, "bases": self.bases}
        told |= {"base_of": dict(self.base_of), "figures": dict(self.figures)}
        write_file(file, lambda partial: torch.save(told, partial))

    @classmethod
    def read(cls, file: Path) -> "Classifier":
        """Read a classifier.

        Raises:
            ValueError: for what is none.
        """
        try:
            told = torch.load(file, weights_only=True)
            network = RecognitionNetwork(told["size"], len(told["bases"]))
            network.load_state_dict(told["weights"])
        except Exception as error:
            raise ValueError(
                f"{file} holds no classifier ({type(error).__name__}); train one with 'draftwood"
                " train images --classifier'"
            ) from None
        return cls(network.eval(), tuple(told["bases"]), told["base_of"], told["figures"])

    def recognised(
        self, pixels: UInt8[np.ndarray, "pictures size size 3"], names: Sequence[str], top: int = 5
    ) -> np.ndarray:
        """True where a picture's base is among the likeliest ones.

        Raises:
            ValueError: for a name that no picture has.
        """
        if strange := [name for name in names if name not in self.base_of]:
            raise ValueError(f"the classifier knows no picture {strange[0]!r}; name one it learnt")
        wanted = [self.bases.index(self.base_of[name]) for name in names]
        with torch.no_grad():
            found = self.network(as_input(torch.from_numpy(pixels)))
        found = found.topk(min(top, len(self.bases))).indices
        return (found == torch.tensor(wanted)[:, None]).any(dim=1).numpy()

    def features(
        self, pixels: UInt8[np.ndarray, "pictures size size 3"]
    ) -> Float[np.ndarray, "pictures features"]:
        """Features of pictures, for tests of two samples."""
        with torch.no_grad():
            return self.network.seen(as_input(torch.from_numpy(pixels))).numpy()


class ClassifierLesson:
    """PictureTask of a classifier: all pictures, as they are and as the codec paints them.

    Every picture is learnt from, since drawn ones are to be recognised by it; it is judged on what
    the codec paints of them, which is shifted by no more than in training.
    """

    name = "classifier"

    def __init__(self, pictures: PictureSet, codec: Codec, batch: int = 128, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self._pictures, self._batch = pictures, batch
        self.bases = tuple(sorted(set(pictures.bases)))
        index = {base: at for at, base in enumerate(self.bases)}
        self._classes = torch.tensor([index[base] for base in pictures.bases])
        self._real = torch.from_numpy(pictures.pixels)
        painted = [codec.decode(codec.encode(each)) for each in pictures.pixels]
        self._painted = torch.from_numpy(np.stack(painted))
        self._weights = rare_bases(pictures.bases)
        self.module = RecognitionNetwork(pictures.pixels.shape[1], len(self.bases))
        self.facts: Mapping[str, Any] = {"batch": batch, "classes": len(self.bases)}

    def loss(self, progress: float) -> Tensor:
        """Loss on the next batch."""
        chosen = torch.multinomial(self._weights, self._batch, replacement=True)
        painted = torch.rand(self._batch) < PAINTED
        pixels = torch.where(
            painted[:, None, None, None], self._painted[chosen], self._real[chosen]
        )
        away = torch.randint(-FARTHEST, FARTHEST + 1, (2,)).tolist()
        inputs = as_input(pixels).roll(away, (2, 3))
        inputs = (inputs + 0.1 * torch.randn_like(inputs)).contiguous(
            memory_format=torch.channels_last
        )
        with fast_products():
            found = self.module(inputs)
        return functional.cross_entropy(found.float(), self._classes[chosen], label_smoothing=0.1)

    def judge(self) -> dict[str, float]:
        """Shares of pictures whose base is found, painted by the codec and real."""
        return {
            "painted top 5": self._share(self._painted, 5),
            "painted top 1": self._share(self._painted, 1),
            "real top 5": self._share(self._real, 5),
            "real top 1": self._share(self._real, 1),
        }

    def classifier(self) -> Classifier:
        """The classifier as it is."""
        self.module.eval()
        names = [" ".join(words) for words in self._pictures.words]
        base_of = dict(zip(names, self._pictures.bases, strict=True))
        return Classifier(self.module, self.bases, base_of, self.judge())

    def _share(self, pixels: Tensor, top: int) -> float:
        right = 0
        with torch.no_grad():
            for part, wanted in zip(pixels.split(256), self._classes.split(256), strict=True):
                found = self.module(as_input(part)).topk(min(top, len(self.bases))).indices
                right += int((found == wanted[:, None]).any(dim=1).sum())
        return right / len(pixels)
