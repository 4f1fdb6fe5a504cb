"""A trained drafter in a folder: what it is, its weights, and a card that says where it is from.

What is the target's own, its embedding and the rows of its output head, is not stored.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.heads.kinds import KINDS, config_of, described, require_parts
from draftwood.heads.places import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    folder_of,
    require_folder,
    shipped,
)
from draftwood.interfaces.model import Model
from draftwood.interfaces.trained import TargetMark, TrainedHead
from draftwood.storage.atomic import replace_folder
from draftwood.storage.safetensors import read_header

__all__ = [
    "StoredHead",
    "TargetMark",
    "TrainedHead",
    "folder_of",
    "load",
    "open_folder",
    "save",
    "shipped",
]

VERSION = 1
CARD = "card.md"

DRAFT_TOKENS = "draft_tokens"
"""Name among the weights of the tokens that are drafted."""


@dataclass(frozen=True, eq=False)
class StoredHead:
    """What a drafter's folder says of itself; its weights are not read yet.

    Attributes:
        config: settings of the network, a dataclass of ``heads.kinds``.
        target: the model that it was trained for.
    """

    folder: Path
    config: Any
    target: TargetMark

    def read(self) -> TrainedHead:
        """The drafter with its weights, in float32.

        Raises:
            ValueError: for weights that are no numbers, and a draft vocabulary that is none.
        """
        weights = _loaded(self.folder / WEIGHTS)
        tokens = weights.pop(DRAFT_TOKENS).long()
        weights = {name: weight.float() for name, weight in weights.items()}
        _require_numbers(weights, str(self.folder / WEIGHTS))
        _require_vocabulary(tokens, self.target, str(self.folder / WEIGHTS))
        head = _network(self.config, len(weights))
        head.load_state_dict(weights, assign=True)
        return TrainedHead(head.eval().requires_grad_(False), tokens, self.target)


def save(folder: Path, trained: TrainedHead, card: str, dtype: torch.dtype | None = None) -> Path:
    """Write a drafter, whole or not at all; it takes the place of one that is there.

    Args:
        card: data, licences, recipe, command, seed and figures, in Markdown.
        dtype: of the weights; None takes bfloat16.

    Raises:
        ValueError: for weights that are no numbers, a draft vocabulary that is none, and a folder
            that holds something else.
        OSError: where the disk refuses.
    """
    from safetensors.torch import save_file

    if folder.exists() and not _is_drafter(folder) and any(folder.iterdir()):
        raise ValueError(f"{folder} holds something else than a drafter; choose another folder")
    dtype = dtype or torch.bfloat16
    weights = {
        name: weight.detach().cpu().to(dtype).contiguous()
        for name, weight in trained.head.state_dict().items()
    }
    _require_numbers(weights, "the drafter")
    tokens = trained.draft_tokens.cpu().to(torch.int32)
    _require_vocabulary(tokens, trained.target, "the drafter")
    config: Any = trained.head.config
    says = {
        "format": FORMAT,
        "version": VERSION,
        "kind": config.kind,
        "head": described(config),
        "target": asdict(trained.target),
    }

    def build(partial: Path) -> None:
        (partial / CONFIG).write_text(json.dumps(says, indent=2) + "\n", encoding="utf-8")
        (partial / CARD).write_text(card.rstrip() + "\n", encoding="utf-8")
        save_file({**weights, DRAFT_TOKENS: tokens}, partial / WEIGHTS)

    return replace_folder(folder, build)


def load(folder: str | Path) -> TrainedHead:
    """The drafter in a folder.

    Raises:
        ValueError: in one line, for a folder that is none or not whole, an unknown kind or version,
            shapes that do not fit, and weights that are no numbers.
    """
    return open_folder(folder).read()


def shipped_for(model: Model, kind: str) -> TrainedHead | None:
    """The drafter of this kind that comes with draftwood for a model, however its weights are
    stored; None where there is none.

    A model of other sizes costs nothing, one of the same sizes a pass over a few tokens.
    """
    sizes = (model.vocab_size, model.hidden_size, model.layers)
    for folder in map(folder_of, shipped()):
        says = _says(folder / CONFIG)
        mark = _mark(says["target"])
        if says["kind"] != kind or (mark.vocab_size, mark.hidden_size, mark.layers) != sizes:
            continue
        try:
            mark.require(TargetMark.of(model, "this model"))
        except ValueError:  # other weights
            continue
        return load(folder)
    return None


def open_folder(folder: str | Path) -> StoredHead:
    """What a folder says of its drafter; reads no weights.

    Args:
        folder: a path, or the name of a drafter that comes with draftwood.

    Raises:
        ValueError: as ``load``, as far as can be seen without weights.
    """
    folder = require_folder(folder)
    says, header = _says(folder / CONFIG), read_header(folder / WEIGHTS)
    try:
        config = config_of(says["kind"], says["head"])
        target = _mark(says["target"])
        network = _network(config, len(header))
    except KeyError as error:
        raise ValueError(f"{folder / CONFIG} does not say {error}; copy it again") from None
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{folder / CONFIG} cannot be used: {_line(error)}") from None
    _require_shapes(folder / WEIGHTS, header, network)
    return StoredHead(folder, config, target)


def _is_drafter(folder: Path) -> bool:
    try:
        return bool(_says(folder / CONFIG))
    except (OSError, ValueError):
        return False


def _says(path: Path) -> dict[str, Any]:
    """What a drafter's config.json holds."""
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


def _mark(values: Mapping[str, Any]) -> TargetMark:
    mark = TargetMark(**{**values, "probe": tuple(map(float, values["probe"]))})
    for name in ("vocab_size", "hidden_size", "layers"):
        if not isinstance(getattr(mark, name), int):
            raise ValueError(f"{name} of the target is no whole number")
    return mark


def _network(config: Any, tensors: int) -> nn.Module:
    """The network without memory for its weights, which are so many tensors."""
    require_parts(config, tensors)
    with torch.device("meta"):
        return KINDS[config.kind][1](config)


def _loaded(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; ValueError where they cannot be read, or are no weights."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not whole ({_line(error)}); copy it again") from None
    for name, weight in weights.items():
        if weight.is_floating_point() == (name == DRAFT_TOKENS):
            raise ValueError(f"{path} is not whole ({name} is {weight.dtype}); copy it again")
    return weights


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _require_shapes(path: Path, header: Mapping[str, Any], network: nn.Module) -> None:
    """Raise ValueError unless a file has just the weights of the network."""
    found = {name: tuple(each["shape"]) for name, each in header.items()}
    wanted = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    if len(found.pop(DRAFT_TOKENS, ())) != 1:
        raise ValueError(f"{path} has no list of {DRAFT_TOKENS}; copy it again")
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


def _require_numbers(weights: Mapping[str, Tensor], where: str) -> None:
    for name, weight in weights.items():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{where} has weights that are no numbers, in {name}")


def _require_vocabulary(tokens: Tensor, target: TargetMark, where: str) -> None:
    ascending = bool((tokens[1:] > tokens[:-1]).all())
    if not (len(tokens) and ascending and tokens[0] >= 0 and tokens[-1] < target.vocab_size):
        raise ValueError(
            f"{where} drafts tokens that are not ascending ids below {target.vocab_size}"
        )
