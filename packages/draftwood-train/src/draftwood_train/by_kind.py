"""Judge a trained head on held-out texts, kind by kind of task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftwood.heads import folder as folders
from draftwood.heads.trained import TrainedHead
from draftwood.loading.models import load_model
from draftwood.storage.atomic import write_file
from draftwood_train.data.dataset import Dataset, Texts
from draftwood_train.data.jobs import OWN
from draftwood_train.data.manifest import Manifest
from draftwood_train.loop import on_device
from draftwood_train.packing import RowPacking
from draftwood_train.recipe import DrafterRecipe, Judged, TargetWeights
from draftwood_train.registry import recipe_class
from draftwood_train.target import layers_of, target_weights

PLACES = 2048
"""Places of a row: few texts are longer, and none but those is cut."""
MEAN = "mean over kinds"
CARD, TITLE = "card.md", "## Held-out texts by kind"


@dataclass(frozen=True)
class KindFigures:
    """Figures of a head on the held-out texts of a kind, every level fed with the true tokens.

    Attributes:
        texts: that were judged.
        places: of their answers.
        depth_1, depth_2, depth_3: share of places at which the likeliest token of that depth is
            right; None where the head's recipe does not tell it.
        overlap: with the target's distribution at temperature 1, at depth 1.
        block_efficiency: tokens of a step with the best tree of 8 nodes for all places.
    """

    kind: str
    texts: int
    places: int
    depth_1: float | None
    depth_2: float | None
    depth_3: float | None
    overlap: float | None
    block_efficiency: float

    @classmethod
    def of(cls, kind: str, texts: int, places: int, figures: Mapping[str, float]) -> "KindFigures":
        known = {name: value / places for name, value in figures.items()}
        return cls(
            kind,
            texts,
            places,
            depth_1=known.get("guess_1", known.get("first_guess")),
            depth_2=known.get("guess_2"),
            depth_3=known.get("guess_3"),
            overlap=known.get("overlap"),
            block_efficiency=known["block_efficiency"],
        )

    def row(self) -> dict[str, str]:
        """Its figures as a table shows them."""
        values = asdict(self)
        counts = ("kind", "texts", "places")
        told = {name: f"{values[name]}" for name in counts}
        shares = (name for name in values if name not in counts)
        return told | {
            name.replace("_", " "): "-" if values[name] is None else f"{values[name]:.3f}"
            for name in shares
        }


def judge_kinds(
    head: str, data: Path, model: str | None = None, most: int = 64
) -> list[KindFigures]:
    """Judge a head on the held-out texts of a data set, most of each kind, and their mean.

    Args:
        head: a drafter's name or folder.
        model: the target's name here; None takes the one in the data.
        most: texts of each kind.

    Raises:
        OSError: where a file is not there.
        ValueError: for a head of another target, and data without held-out texts.
    """
    trained, manifest = folders.load(head), Manifest.read(data)
    name = model or manifest.target.name
    target_model = load_model(name, manifest.target.products, "cpu").model
    trained.target.require_model(target_model, name)
    target = on_device(
        target_weights(
            target_model, name, trained.draft_tokens, layers_of(recipe_of(trained.config))
        ),
        torch.device("cpu"),
        torch.float32,
    )
    held_out = Dataset.open(data, target_model).texts("held-out")
    return judged(trained, held_out, target, most)


def write_card(head: Path, data: Path, kinds: Sequence[KindFigures]) -> None:
    """Put the figures at the end of a head's card, in place of earlier ones.

    Raises:
        FileNotFoundError: where the folder has no card.
    """
    card = head / CARD
    if not card.is_file():
        raise FileNotFoundError(f"there is no {card}; --card takes the folder of a trained head")
    rows = [each.row() for each in kinds]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    before = card.read_text(encoding="utf-8").partition(TITLE)[0].rstrip("\n")
    write_file(card, f"{before}\n\n{TITLE}\n\nTexts of {data.name}.\n\n{table}\n")


def judged(
    trained: TrainedHead, held_out: Texts, target: TargetWeights, most: int
) -> list[KindFigures]:
    """Figures of each kind by name, and their mean."""
    recipe, found = recipe_of(trained.config), list[KindFigures]()
    for kind in sorted(set(held_out.kinds)):
        texts = held_out.of_kind(kind)[:most]
        places, sums = 0, dict[str, float]()
        for each in _judged_rows(recipe, trained.network, texts, target):
            places += each.places
            for name, value in each.figures.items():
                sums[name] = sums.get(name, 0.0) + value
        if places:
            found.append(KindFigures.of(kind, len(texts), places, sums))
    if not found:
        raise ValueError("the data hold no held-out texts with an answer long enough to judge by")
    return [*found, mean_of(found)]


def mean_of(kinds: Sequence[KindFigures]) -> KindFigures:
    """Mean of all kinds, each counting as much; None where one lacks a figure.

    Prompts that the target wrote itself are left out where there are others: a hash alone holds
    them out, so they are like those of training.
    """
    kinds = [kind for kind in kinds if kind.kind != OWN] or kinds
    means: dict[str, float | None] = {}
    for each in fields(KindFigures)[3:]:
        values = [getattr(kind, each.name) for kind in kinds]
        known = [value for value in values if value is not None]
        means[each.name] = sum(known) / len(known) if len(known) == len(values) else None
    counts = [sum(getattr(kind, name) for kind in kinds) for name in ("texts", "places")]
    return KindFigures(MEAN, *counts, **means)  # type: ignore[arg-type]


def recipe_of(config: Any) -> DrafterRecipe:
    """The recipe of a head's kind; all that judging asks of it is how many frames there are."""
    recipe: Any = recipe_class(config.kind)
    frames = getattr(config, "frames", None)
    return recipe() if frames is None else recipe(frames=frames)


def _judged_rows(
    recipe: DrafterRecipe, head: nn.Module, texts: Texts, target: TargetWeights
) -> Iterator[Judged]:
    """Judge texts a row at a time, with the states that the head reads."""
    config: Any = head.config
    # a head that reads the target's cache is judged by the layer whose input makes it
    reads, layers = tuple(config.reads or recipe.reads(target.layers)), texts.layers
    if missing := {*reads, target.layers} - set(layers):
        raise ValueError(
            f"the head reads layer {min(missing)}, but the data hold"
            f" {', '.join(map(str, layers))}; make data with --layers"
        )
    places = tuple(layers.index(layer) for layer in reads)
    packing = RowPacking(texts, places, layers.index(target.layers), PLACES, 1, None)
    head.eval()
    for batch in packing.plan(0):
        with torch.no_grad():
            yield recipe.judge(head, packing.packed(batch), target)
