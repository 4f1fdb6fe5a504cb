"""Judge a trained head on held-out texts, kind by kind of task."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from draftwood.heads import folder as folders
from draftwood.heads.trained import TrainedHead
from draftwood.loading.models import load_model
from draftwood.models.model import Model
from draftwood_train.data.dataset import Dataset, Texts
from draftwood_train.data.jobs import OWN
from draftwood_train.data.manifest import Manifest
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.judging import all_counted, best_trees, means, summed
from draftwood_train.loop import on_device
from draftwood_train.packing import RowPacking
from draftwood_train.recipe import DrafterRecipe, Judged, TargetWeights, TreePath
from draftwood_train.registry import recipe_class
from draftwood_train.target import layers_of, target_weights

PLACES = 2048
"""Places of a row: few texts are longer, and none but those is cut."""
MEAN = "mean over kinds"
COUNTS, NOT_TOLD = ("texts", "places"), "-"


@dataclass(frozen=True)
class KindFigures:
    """Figures of a head on the held-out texts of a kind, every level fed with the true tokens.

    Kinds that are judged together share one tree, so that they differ by their texts alone.

    Attributes:
        texts: that were judged.
        places: of their greedy answers, or of all where no greedy one is long enough.
        depth_1, depth_2, depth_3: share of places at which the likeliest token of that depth is
            right; None where the head's recipe does not tell it.
        overlap: with the target's distribution at temperature 1, at depth 1.
        block_efficiency: tokens of a step with the tree of 8 nodes that is the best one for all
            kinds together; one that the recipe fits to each place where it judges so.
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
    def of(
        cls, kind: str, texts: int, judged: Judged, trees: Mapping[str, Collection[TreePath]]
    ) -> "KindFigures":
        known = means(judged, trees)
        return cls(
            kind,
            texts,
            judged.places,
            depth_1=known.get("guess_1", known.get("first_guess")),
            depth_2=known.get("guess_2"),
            depth_3=known.get("guess_3"),
            overlap=known.get("overlap"),
            block_efficiency=known["block_efficiency"],
        )

    def row(self) -> dict[str, str]:
        """Its figures as a table shows them, to three digits."""
        values = asdict(self)
        told = {"kind": self.kind} | {name: str(values[name]) for name in COUNTS}
        shares = (name for name in values if name not in told)
        return told | {
            name.replace("_", " "): NOT_TOLD if values[name] is None else f"{values[name]:.3f}"
            for name in shares
        }

    @classmethod
    def of_row(cls, row: Mapping[str, str]) -> "KindFigures":
        """Figures as a table shows them.

        Raises:
            ValueError: for a row of another table.
        """
        told: dict[str, Any] = {name.replace(" ", "_"): value for name, value in row.items()}
        if told.keys() != {each.name for each in fields(cls)}:
            raise ValueError(f"a row of figures by kind has no columns {', '.join(row)}")
        for name in told.keys() - {"kind"}:
            number = int if name in COUNTS else float
            told[name] = None if told[name] == NOT_TOLD else number(told[name])
        return cls(**told)


@dataclass(frozen=True, eq=False)
class HeadJudge:
    """A head beside its target, which judges texts that the target wrote."""

    trained: TrainedHead
    target: TargetWeights

    @classmethod
    def of(cls, trained: TrainedHead, model: Model, name: str) -> "HeadJudge":
        """Judge of a head, with the target as it was loaded by its name.

        Raises:
            ValueError: for a head of another target.
        """
        trained.target.require_model(model, name)
        newest = layers_of(recipe_of(trained.config))
        weights = target_weights(model, name, trained.draft_tokens, newest)
        return cls(trained, on_device(weights, torch.device("cpu"), torch.float32))

    def kinds(
        self, kinds: Mapping[str, Texts | TextsInMemory], row: int = PLACES
    ) -> list[KindFigures]:
        """Figures of each kind of texts, without those whose answers are too short to judge by.

        Greedy answers tell which tokens are right, drawn ones where there are no others. The
        overlap is that of all.

        Args:
            row: places of a row that texts share.
        """
        found = {kind: self._sums(texts, row) for kind, texts in kinds.items()}
        trees = best_trees(summed(found.values()))
        return [
            KindFigures.of(kind, len(kinds[kind]), judged, trees)
            for kind, judged in found.items()
            if judged.places
        ]

    def _sums(self, texts: Texts | TextsInMemory, row: int) -> Judged:
        """Counts over the places of texts of a kind."""
        greedy = frozenset(number for number, told in enumerate(texts.are_greedy) if told)
        drawn = frozenset(range(len(texts))) - greedy
        sums = [summed(self._rows(texts, row, only)) for only in (greedy, drawn) if only]
        known = [each for each in sums if each.places]
        if not known:
            return Judged(0, {})
        own, every = known[0], summed(sums)
        if "overlap" not in own.figures:
            return own
        count = every.counts.get("overlap", every.places)
        return replace(
            own,
            figures={**own.figures, "overlap": every.figures["overlap"]},
            counts={**own.counts, "overlap": count},
        )

    def text(self, text: StoredText, layers: tuple[int, ...]) -> KindFigures | None:
        """Figures of one text alone, the tree being the best one for it.

        Args:
            layers: whose inputs its states are.
        """
        alone = {text.kind or text.source: TextsInMemory([text], layers)}
        return next(iter(self.kinds(alone, min(len(text.tokens), PLACES))), None)

    def _rows(
        self, texts: Texts | TextsInMemory, row: int, only: frozenset[int]
    ) -> Iterator[Judged]:
        """Judge texts a row at a time, with the states that the head reads."""
        config, target, layers = self.trained.config, self.target, texts.layers
        # a head that reads the target's cache is judged by the layer whose input makes it
        recipe = recipe_of(config)
        reads = tuple(config.reads or recipe.reads(target.layers))
        if missing := {*reads, target.layers} - set(layers):
            raise ValueError(
                f"the head reads layer {min(missing)}, but the data hold"
                f" {', '.join(map(str, layers))}; make data with --layers"
            )
        places = tuple(layers.index(layer) for layer in reads)
        packing = RowPacking(texts, places, layers.index(target.layers), row, 1, None, only)
        network = self.trained.network.eval()
        for batch in packing.plan(0):
            with torch.no_grad():
                yield recipe.judge(network, all_counted(packing.packed(batch)), target)


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
    judge = HeadJudge.of(trained, target_model, name)
    return judged(judge, Dataset.open(data, target_model).texts("held-out"), most)


def judged(judge: HeadJudge, held_out: Texts, most: int) -> list[KindFigures]:
    """Figures of each kind by name, and their mean.

    Raises:
        ValueError: where no answer is long enough to judge by.
    """
    kinds = sorted(set(held_out.kinds))
    known = judge.kinds({kind: held_out.of_kind(kind)[:most] for kind in kinds})
    if not known:
        raise ValueError("the data hold no held-out texts with an answer long enough to judge by")
    return [*known, mean_of(known)]


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
    counts = [sum(getattr(kind, name) for kind in kinds) for name in COUNTS]
    return KindFigures(MEAN, *counts, **means)  # type: ignore[arg-type]


def recipe_of(config: Any) -> DrafterRecipe:
    """The recipe of a head's kind; all that judging asks of it is how many frames there are."""
    recipe: Any = recipe_class(config.kind)
    frames = getattr(config, "frames", None)
    return recipe() if frames is None else recipe(frames=frames)
