"""Model that draws pictures token by token: a decoder, its token ids and its codec."""

from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.storage.weights import read_settings, save_settings

if TYPE_CHECKING:
    from draftwood.models.model import Model
    from draftwood_images.codec import Codec

SETTINGS = "picture.json"
"""File of a model's folder that makes it one of pictures."""
FORMAT = "draftwood-pictures"


@dataclass(frozen=True)
class PictureSettings:
    """Meaning of a model's token ids, as the ``picture.json`` of its folder has it.

    A sequence is the tokens of the words, ``begin``, then the codes of the grid, row by row.

    Attributes:
        rows, columns: of the grid of codes.
        first_code: token id of code 0; the others follow.
        codes: number of codes.
        begin: token that opens the picture, behind the words.
        unconditional: token that stands in the words' place where the model is to draw anything.
        words: that the model knows; the first has the id ``first_word``, the others follow.
        guidance: scale of the difference that words make, which suits the model.
        top_k: codes that a draw is usually restricted to.
    """

    rows: int
    columns: int
    first_code: int
    codes: int
    begin: int
    unconditional: int
    words: tuple[str, ...]
    first_word: int
    guidance: float = 1.0
    top_k: int = 100

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "codes", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        spans = [(self.first_code, self.codes), (self.first_word, len(self.words))]
        spans = sorted([*spans, (self.begin, 1), (self.unconditional, 1)])
        behind = pairwise(spans)
        if spans[0][0] < 0 or any(at + size > after for (at, size), (after, _) in behind):
            raise ValueError("words, codes and marks share token ids; give each its own")

    @property
    def vocabulary(self) -> int:
        """Token ids that have a meaning: all are below it."""
        ends = (self.first_code + self.codes, self.first_word + len(self.words))
        return max(*ends, self.begin + 1, self.unconditional + 1)

    def save(self, folder: Path) -> None:
        """Write the settings into a folder that is being made."""
        save_settings(folder, {SETTINGS: {"format": FORMAT, **asdict(self)}})

    @classmethod
    def load(cls, folder: Path) -> "PictureSettings":
        """Read the settings of a folder.

        Raises:
            ValueError: for a folder without whole ones.
        """
        try:
            told: dict[str, Any] = read_settings(folder / SETTINGS)
            if told.pop("format", None) != FORMAT:
                raise ValueError("another format")
            if strange := set(told) - {each.name for each in fields(cls)}:
                raise ValueError(f"unknown {min(strange)}")
            return cls(**{**told, "words": tuple(told["words"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{folder} holds no whole model of pictures ({SETTINGS}: {error}); make one with"
                " 'draftwood train images'"
            ) from None


@dataclass(frozen=True, eq=False)
class PictureModel:
    """All of a model's folder.

    Attributes:
        model: gives the logits, natively and without PyTorch.
        settings: meaning of its tokens.
        codec: turns codes into pixels and back.
    """

    model: "Model"
    settings: PictureSettings
    codec: "Codec"
