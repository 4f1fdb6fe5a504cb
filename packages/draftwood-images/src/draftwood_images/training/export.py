"""Folder of a trained model of pictures."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from draftwood.storage.atomic import replace_folder
from draftwood.storage.safetensors import write_arrays
from draftwood.storage.weights import save_settings
from draftwood_images.codec import GreyCodec, LearnedCodec, write_codec
from draftwood_images.picture_model import PictureSettings
from draftwood_images.training.named import PictureSet
from draftwood_images.training.transformer import PictureTransformer

NAMES = "names.json"
"""File of the pictures' names, by whether they were learnt from."""


@dataclass(frozen=True, eq=False)
class TrainedPictures:
    """All that a folder holds.

    Attributes:
        card: text about where the model comes from and how good it is.
        licence: file of the pictures' licence, which is copied; None without one.
    """

    transformer: PictureTransformer
    settings: PictureSettings
    codec: GreyCodec | LearnedCodec
    pictures: PictureSet
    card: str
    licence: Path | None = None

    def write(self, folder: Path) -> None:
        """Make or replace a folder, whole or not at all.

        Raises:
            OSError: where the disk refuses.
        """
        replace_folder(folder, self._fill)

    def _fill(self, folder: Path) -> None:
        save_settings(folder, {"config.json": self.transformer.sizes.configuration()})
        bits = {
            name: weight.contiguous().view(torch.uint16).numpy()
            for name, weight in self.transformer.tensors().items()
        }
        write_arrays(folder / "model.safetensors", bits)
        self.settings.save(folder)
        write_codec(self.codec, folder)
        held: dict[bool, list[str]] = {False: [], True: []}
        for words, out in zip(self.pictures.words, self.pictures.is_held_out, strict=True):
            held[bool(out)].append(" ".join(words))
        named = {"learnt": sorted(set(held[False])), "held_out": sorted(set(held[True]))}
        (folder / NAMES).write_text(json.dumps(named, indent=0) + "\n", encoding="utf-8")
        (folder / "card.md").write_text(self.card, encoding="utf-8")
        if self.licence is not None:
            shutil.copyfile(self.licence, folder / self.licence.name)


def card(
    title: str, command: str, pictures: PictureSet, figures: dict[str, dict[str, float]]
) -> str:
    """Write a card: what the model learnt from, by which command, and its figures."""
    held = int(pictures.is_held_out.sum())
    lines = [f"# {title}", "", "Draws pictures from words, token by token.", ""]
    lines += [f"    {command}", ""]
    lines += [
        f"{len(pictures) - held:,} pictures were learnt from, {held:,} held out with all variants"
        " of their base.",
        "",
    ]
    for part, row in figures.items():
        told = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
        lines.append(f"- {part}: {told}")
    return "\n".join(lines) + "\n"
