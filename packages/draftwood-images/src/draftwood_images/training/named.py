"""Pictures with names, and which of them are held out together."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

from draftwood_images.words import words_in

HELD_OUT = 0.1
"""Share of the bases that is held out."""
CLASSES = 20
"""Bases below which a set has classes of pictures rather than names."""


@dataclass(frozen=True)
class NamedPicture:
    """Picture with its name, before it is scaled.

    Attributes:
        words: of its name, in lower case.
        base: what it shares with its variants, which are held out together.
        image: a file's content.
        origin: where it is from, for messages.
    """

    words: tuple[str, ...]
    base: str
    image: bytes
    origin: str

    def opened(self) -> Image.Image:
        """The picture with its transparency.

        Raises:
            ValueError: for what is no picture.
        """
        try:
            image = Image.open(BytesIO(self.image))
            if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return image.convert("RGBA")
        except (OSError, ValueError, SyntaxError) as error:
            raise ValueError(
                f"{self.origin} is no picture that can be read ({error}); remove it"
            ) from None


@dataclass(frozen=True, eq=False)
class PictureSet:
    """Pictures of one size, on white.

    Attributes:
        pixels: red, green and blue.
        words: of each one's name.
        bases: of each one.
    """

    pixels: UInt8[np.ndarray, "pictures size size 3"]
    words: Sequence[tuple[str, ...]]
    bases: Sequence[str]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def is_held_out(self) -> Bool[np.ndarray, " pictures"]:
        """True for the pictures whose base is held out, which a hash of its name decides.

        Few bases are classes: their pictures are held out one by one.
        """
        alone = len(set(self.bases)) < CLASSES
        keys = [f"{base} {at}" if alone else base for at, base in enumerate(self.bases)]
        held = np.array([_place(key) < HELD_OUT for key in keys], bool)
        if not held.any() or held.all():
            held[:] = [base == self.bases[-1] for base in self.bases]
        if held.all():
            raise ValueError("the pictures have one name; give them some, to hold one out")
        return held

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Words of all names, sorted."""
        return tuple(sorted({word for words in self.words for word in words}))


def _place(base: str) -> float:
    """Number from 0 to 1 that belongs to a base."""
    digest = hashlib.sha256(base.encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def scaled(pictures: Sequence[NamedPicture], size: int) -> PictureSet:
    """Lay pictures on white, and scale the square in their middle.

    Raises:
        ValueError: for pictures of mixed sizes, or none.
    """
    if not pictures:
        raise ValueError("there are no pictures to learn from; name a font or a folder with some")
    opened = [each.opened() for each in pictures]
    first = opened[0].size
    for each, image in zip(pictures, opened, strict=True):
        if image.size != first:
            raise ValueError(
                f"pictures have one size, but {pictures[0].origin} has {first[0]} x {first[1]}"
                f" pixels and {each.origin} {image.size[0]} x {image.size[1]}; scale them first"
            )
    pixels = np.stack([_on_white(image, size) for image in opened])
    return PictureSet(pixels, [each.words for each in pictures], [each.base for each in pictures])


def _on_white(image: Image.Image, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """The largest square in a picture's middle, on white and scaled."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = Image.new("RGBA", (side, side), "white")
    square.alpha_composite(image.crop((left, top, left + side, top + side)))
    if side != size:
        square = square.resize((size, size), Image.Resampling.HAMMING)
    return np.asarray(square.convert("RGB"))


def read_pictures(place: Path) -> list[NamedPicture]:
    """Read the PNG files of a folder; the words of a file's name are the picture's.

    A number at a name's end, behind a space, hyphen or underscore, only tells files apart.

    Raises:
        ValueError: for a folder without pictures, and a file whose name tells nothing.
    """
    files = sorted(place.glob("*.png"))
    if not files:
        raise ValueError(f"{place} has no PNG files; name a folder with some, or a font")
    found = []
    for file in files:
        words = words_in(file.stem.replace("-", " ").replace("_", " "))
        if len(words) > 1 and words[-1].isdigit():
            words.pop()
        if not words:
            raise ValueError(f"the name of {file} has no words; name a picture by what it shows")
        found.append(NamedPicture(tuple(words), " ".join(words), file.read_bytes(), file.name))
    return found
