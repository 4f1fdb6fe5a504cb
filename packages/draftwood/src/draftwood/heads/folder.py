"""Trained drafters in folders: configuration, weights, and a model card.

The target's embedding and output head are not stored.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from draftwood.arrays import Int
from draftwood.heads.kinds import HeadConfig, config_of, require_parts
from draftwood.heads.places import (
    CARD,
    CONFIG,
    FORMAT,
    WEIGHTS,
    folder_of,
    require_folder,
    shipped,
)
from draftwood.heads.shapes import (
    BlockFormat,
    StoredType,
    StoredWeights,
    as_stored,
    encoded,
    inputs_of,
    is_blocks,
    is_finite,
    require_format,
)
from draftwood.heads.trained import HeadWeights, TargetFingerprint, TrainedHead
from draftwood.models.model import Model
from draftwood.storage.atomic import explain_write_errors, replace_folder
from draftwood.storage.safetensors import map_arrays, read_header, write_arrays
from draftwood.storage.weights import settings_or_none

__all__ = [
    "StoredHead",
    "TargetFingerprint",
    "TrainedHead",
    "card_of",
    "folder_of",
    "load",
    "open_folder",
    "save",
    "shipped",
]

VERSION = 1

ELSEWHERE = "choose another folder"

DRAFT_TOKENS = "draft_tokens"
"""Name of the tensor that lists the draft vocabulary."""


@dataclass(frozen=True, eq=False)
class StoredHead:
    """Description of a trained drafter in its folder; its weights are not read yet.

    Attributes:
        config: settings of the network, a dataclass of ``heads.kinds``.
        target: the model that it was trained for.
        blocks: format of its matrices; None for floats.
    """

    folder: Path
    config: Any
    target: TargetFingerprint
    blocks: BlockFormat | None = None

    def read(self) -> TrainedHead:
        """Read the drafter with its weights, in float32.

        Raises:
            ValueError: for weights with NaN or infinity, and a broken draft vocabulary.
        """
        path = self.folder / WEIGHTS
        _require_whole(path)
        arrays = map_arrays(path)
        tokens = arrays.pop(DRAFT_TOKENS).astype(np.int64)
        weights = StoredWeights(arrays, self.blocks)
        _require_numbers(weights, str(path))
        _require_vocabulary(tokens, self.target, str(path))
        return TrainedHead(self.config, weights, tokens, self.target)

    def require_name(self, model: str, known: Collection[str]) -> None:
        """Refuse a model by its name, where it and the head's target are both known by name.

        Args:
            known: names that mean one model each.

        Raises:
            ValueError: naming both.
        """
        if {model, self.target.name} <= {*known} and model != self.target.name:
            raise ValueError(
                f"the drafter was trained for {self.target.name}, not for {model}; take a drafter"
                " of this model, or train one"
            )

    def require_sizes_in(self, folder: Path, model: str) -> None:
        """Refuse a model's folder whose config.json says other sizes, before weights are loaded.

        Args:
            model: its name, for the error.

        Raises:
            ValueError: as ``TargetFingerprint.require``.
        """
        says = settings_or_none(folder / CONFIG) or {}
        if {"hidden_size", "num_hidden_layers"} <= says.keys():
            sizes = {"hidden_size": says["hidden_size"], "layers": says["num_hidden_layers"]}
            self.target.require(replace(self.target, name=model, **sizes))


def save(folder: Path, trained: TrainedHead, card: str, dtype: StoredType = "bfloat16") -> Path:
    """Write a drafter, whole or not at all; replaces one in the same folder.

    Args:
        card: data, licences, recipe, command, seed and figures, in Markdown.
        dtype: of the weights; of blocks, of the matrices among them that make whole ones.

    Raises:
        ValueError: for weights with NaN or infinity, a broken draft vocabulary, and a folder that
            holds something else.
        OSError: where the disk refuses.
    """
    require_place(folder)
    _require_numbers(trained.weights, "the drafter")
    arrays = {name: encoded(name, each, dtype) for name, each in trained.weights.items()}
    tokens, config = trained.draft_tokens.astype(np.int32), trained.config
    _require_vocabulary(tokens, trained.target, "the drafter")
    says = {
        "format": FORMAT,
        "version": VERSION,
        "kind": config.kind,
        "head": asdict(config),
        "target": asdict(trained.target),
        **({"blocks": dtype} if is_blocks(dtype) else {}),
    }

    def build(partial: Path) -> None:
        (partial / CONFIG).write_text(json.dumps(says, indent=2) + "\n", encoding="utf-8")
        (partial / CARD).write_text(card.rstrip() + "\n", encoding="utf-8")
        write_arrays(partial / WEIGHTS, {**arrays, DRAFT_TOKENS: tokens})

    return replace_folder(folder, build)


def require_place(folder: Path) -> None:
    """Refuse a folder that cannot take a drafter, before one is made.

    Raises:
        ValueError: for a folder that holds something else.
        OSError: for a place that cannot be written.
    """
    there = next(each for each in (*folder.absolute().parents, folder) if each.exists())
    with explain_write_errors(folder, ELSEWHERE), TemporaryFile(dir=there):
        if folder.exists() and not is_drafter(folder) and any(folder.iterdir()):
            raise ValueError(f"{folder} holds something else than a drafter; {ELSEWHERE}")


def load(folder: str | Path) -> TrainedHead:
    """Load the drafter in a folder.

    Raises:
        ValueError: in one line, for a missing or incomplete folder, an unknown kind or version,
            shapes that do not fit, and weights with NaN or infinity.
    """
    return open_folder(folder).read()


def card_of(folder: str | Path) -> str:
    """Read the card of a drafter; "" where it has none."""
    path = folder_of(folder) / CARD
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def shipped_for(model: Model, kind: str) -> TrainedHead | None:
    """Find the shipped drafter of this kind for a model, however the model's weights are stored.

    None if there is none. A model of other sizes costs nothing, one of the same sizes a pass over a
    few tokens.
    """
    sizes = (model.vocab_size, model.hidden_size, model.layers)
    for folder in map(folder_of, shipped()):
        says = _says(folder / CONFIG)
        target = _fingerprint(says["target"])
        if says["kind"] != kind or (target.vocab_size, target.hidden_size, target.layers) != sizes:
            continue
        try:
            target.require_model(model)
        except ValueError:  # other weights
            continue
        return load(folder)
    return None


def open_folder(folder: str | Path) -> StoredHead:
    """Read the description of a drafter from its folder, without weights.

    Args:
        folder: a path, or the name of a drafter that comes with draftwood.

    Raises:
        ValueError: as ``load``, as far as can be seen without weights.
    """
    folder = require_folder(folder)
    says, header = _says(folder / CONFIG), read_header(folder / WEIGHTS)
    try:
        config = config_of(says["kind"], says["head"])
        target = _fingerprint(says["target"])
        blocks = says.get("blocks")
        require_format(blocks)
        require_parts(config, len(header))
    except KeyError as error:
        raise ValueError(f"{folder / CONFIG} does not say {error}; copy it again") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / CONFIG} cannot be used: {_line(error)}") from None
    found = {name: _shape(each, blocks) for name, each in header.items()}
    if len(found.pop(DRAFT_TOKENS, ())) != 1:
        raise ValueError(f"{folder / WEIGHTS} has no list of {DRAFT_TOKENS}; copy it again")
    _require_shapes(folder / WEIGHTS, found, config)
    return StoredHead(folder, config, target, blocks)


def is_drafter(folder: Path) -> bool:
    """True if a drafter lies in a folder."""
    try:
        return bool(_says(folder / CONFIG))
    except (OSError, ValueError):
        return False


def _says(path: Path) -> dict[str, Any]:
    """Read a drafter's config.json."""
    try:
        says = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not whole ({error}); copy it again") from None
    if not isinstance(says, dict) or says.get("format") != FORMAT:
        raise ValueError(f"{path} does not describe a drafter of draftwood; name another folder")
    if says.get("version") != VERSION:
        raise ValueError(
            f"{path} is of version {says.get('version')}, this draftwood reads {VERSION}; update"
            " draftwood, or train the drafter again"
        )
    return says


def _fingerprint(values: Mapping[str, Any]) -> TargetFingerprint:
    fingerprint = TargetFingerprint(**{**values, "probe": tuple(map(float, values["probe"]))})
    for name in ("vocab_size", "hidden_size", "layers"):
        if not isinstance(getattr(fingerprint, name), int):
            raise ValueError(f"{name} of the target is no whole number")
    return fingerprint


def _shape(told: Mapping[str, Any], blocks: BlockFormat | None) -> tuple[int, ...]:
    """Shape of a weight by the header of its file; of blocks that of the matrices."""
    shape = tuple(told["shape"])
    if told["dtype"] != "U8" or blocks is None or len(shape) < 2:
        return shape
    return (*shape[:-1], inputs_of(shape[-1], blocks))


SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}
"""Bytes of a weight, or of a part of a block, by the types in which files have them."""
SIZES_OF_TOKENS = {"I32": 4, "I64": 8}


def _require_whole(path: Path) -> None:
    """Raise ValueError unless a file's arrays lie one behind the other, in types of a head."""
    place = 0
    for name, each in sorted(read_header(path).items(), key=lambda it: it[1]["data_offsets"]):
        size = (SIZES_OF_TOKENS if name == DRAFT_TOKENS else SIZES).get(each["dtype"])
        if size is None:
            raise ValueError(f"{path} is not whole ({name} is {each['dtype']}); copy it again")
        end = place + size * math.prod(each["shape"])
        if each["data_offsets"] != [place, end]:
            raise ValueError(f"{path} is not whole ({name} lies elsewhere); copy it again")
        place = end


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _require_shapes(path: Path, found: Mapping[str, tuple[int, ...]], config: HeadConfig) -> None:
    """Raise ValueError unless a file has just the weights that the settings ask for."""
    wanted = config.shapes()
    for name in sorted(set(found) | set(wanted)):
        if found.get(name) != wanted.get(name):
            there, asked = (
                "missing" if each is None else "x".join(map(str, each))
                for each in (found.get(name), wanted.get(name))
            )
            raise ValueError(
                f"{path} does not fit its {CONFIG}: {name} is {there}, by the settings {asked};"
                " copy the whole folder again"
            )


def _require_numbers(weights: HeadWeights, where: str) -> None:
    for name, weight in as_stored(weights).items():
        if not is_finite(weight):
            raise ValueError(
                f"{where} has weights that are no numbers, in {name}; copy the folder again, or"
                " train the head anew"
            )


def _require_vocabulary(
    tokens: Int[np.ndarray, " draft_vocab"], target: TargetFingerprint, where: str
) -> None:
    ascending = bool((tokens[1:] > tokens[:-1]).all())
    if not (len(tokens) and ascending and tokens[0] >= 0 and tokens[-1] < target.vocab_size):
        raise ValueError(
            f"{where} drafts tokens that are not ascending ids below {target.vocab_size}"
        )
