"""Cells: what is measured one beside the other, and which of them each comparison consists of."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from draftwood import methods
from draftwood.drafters.resources import DrafterName
from draftwood.rng import Rng
from draftwood.shapes import BestFirst, Independent, Paths, Sequoia, Shape, StochasticBeam, Widths
from draftwood.tree import Draw
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal, Verifier

PLAIN = "plain"
BUDGET_SHAPES: dict[int, tuple[list[tuple[int, int]], list[tuple[int, ...]]]] = {
    # target budget: (chains or beams, length), and branching vectors; each uses the budget up
    6: ([(2, 3), (3, 2)], [(2, 1, 1), (2, 2), (3, 1)]),
    10: ([(2, 5), (5, 2)], [(2, 1, 1, 1, 1), (2, 2, 1), (5, 1)]),
    14: ([(2, 7), (7, 2)], [(2, 1, 1, 1, 1, 1, 1), (2, 2, 2), (7, 1)]),
    21: ([(3, 7), (7, 3)], [(3, 1, 1, 1, 1, 1, 1), (3, 2, 2), (7, 1, 1)]),
    30: ([(5, 6), (6, 5)], [(2, 2, 2, 2), (5, 1, 1, 1, 1, 1), (6, 1, 1, 1, 1)]),
}


@dataclass(frozen=True)
class Configuration:
    """One thing that is measured.

    Attributes:
        method: its label.
        at: where it stands, for instance ``length 3``.
        recipe: name of the method it is made of.
        shape: other than the recipe's.
        verifier: other than the recipe's.
        drafter: other than the recipe's.
        batch: requests decoded together, for ``load``.
        rate: requests arriving per second, for ``load``.
    """

    method: str
    at: str = "default"
    recipe: str = ""
    shape: Shape | None = None
    verifier: Verifier | None = None
    drafter: DrafterName | None = None
    batch: int | None = None
    rate: float | None = None

    @property
    def key(self) -> str:
        """Tells it from the others."""
        parts = [self.method, self.at, *([repr(self.shape)] if self.shape is not None else [])]
        return " | ".join(parts)

    @property
    def base(self) -> methods.Recipe:
        return methods.recipe(self.recipe or self.method)

    @property
    def tree(self) -> Shape | None:
        """The shape that is used, where there is one."""
        return self.shape or self.base.shape

    @property
    def rule(self) -> Verifier:
        return self.verifier or self.base.verifier

    @property
    def drafts_with(self) -> DrafterName:
        return self.drafter or self.base.drafter

    @property
    def lossless(self) -> bool:
        return bool(self.rule.exact_for)

    @property
    def draft_steps(self) -> int | None:
        """Runs of the draft model per tree; None where there is no draft model."""
        return (
            depth_of(self.tree)
            if self.drafts_with == "draft-model" and self.tree is not None
            else None
        )


def depth_of(shape: Shape) -> int:
    """Levels that a drafter runs to grow a shape."""
    if isinstance(shape, BestFirst):
        return shape.depth  # whatever it keeps of them
    table = torch.full((64, 64), 1 / 64)
    return shape.grow(0, lambda tree, first: table[tree.tokens[first:]], Rng(0)).depth


def draw_of(shape: Shape) -> Draw:
    """How a shape's siblings are drawn."""
    table = torch.full((64, 64), 1 / 64)
    return shape.grow(0, lambda tree, first: table[tree.tokens[first:]], Rng(0)).draw


RSD_METHODS: dict[str, tuple[str, Verifier]] = {  # what they are made of: a recipe, and the rule
    "speculative": ("speculative", Rejection()),
    "block": ("block", Block()),
    "spectr": ("spectr", KSeq()),
    "specinfer": ("specinfer", Rejection()),
    "rsd-c": ("rsd-c", Rejection()),
    "rsd-s": ("rsd-s", Rejection()),
    "rsd-c + greedy-plus-one": ("greedy-plus-one", GreedyPlusOne()),
    "rsd-c + traversal": ("rsd-c", Traversal()),
    "rsd-s + traversal": ("rsd-s", Traversal()),
}


def rsd_configuration(
    name: str, at: str, vector: tuple[int, ...], beams: tuple[int, int], chain: tuple[int, ...]
) -> Configuration:
    recipe, verifier = RSD_METHODS[name]
    shapes: dict[str, Shape] = {
        "speculative": Widths(chain),
        "block": Widths(chain),
        "spectr": Independent(*beams),
        "specinfer": Widths(vector, "independent"),
        "rsd-s": StochasticBeam(*beams),
        "greedy-plus-one": Widths(vector, "greedy-plus-one"),
    }
    return Configuration(name, at, recipe, shapes.get(recipe, Widths(vector)), verifier)


def urgency(cell: Configuration) -> tuple[int, int, int, int]:
    kind, size = cell.at.split()
    long_chain = kind == "budget" and cell.recipe in ("speculative", "block")
    slow = isinstance(cell.verifier, Traversal)
    return (
        int(slow),
        0 if kind == "length" else 2 if long_chain else 1,
        int(size),
        -breadth(cell.tree),
    )


def breadth(shape: Shape | None) -> int:
    """Children of the root."""
    if isinstance(shape, Widths):
        return shape.widths[0]
    return (
        shape.chains
        if isinstance(shape, Independent)
        else shape.width
        if isinstance(shape, StochasticBeam)
        else 1
    )


def other_verifiers(recipe: methods.Recipe) -> list[Configuration]:
    """The method under every rule that is exact for its tree; under its own it keeps its name."""
    if recipe.shape is None:
        raise ValueError(
            f"{recipe.name} grows its own trees; vary the verifier of a method that takes a shape"
        )
    draw = draw_of(recipe.shape)
    chain = depth_of(recipe.shape) == recipe.shape.nodes
    rules = [
        Match(),
        Rejection(),
        KSeq(),
        GreedyPlusOne(),
        Traversal(),
        *([Block()] if chain else []),
    ]
    labels = {rule: f"{recipe.name} + {rule.name}" for rule in rules if draw in rule.exact_for}
    labels[recipe.verifier] = recipe.name
    return [
        Configuration(label, recipe=recipe.name, verifier=rule) for rule, label in labels.items()
    ]


def other_shapes(recipe: methods.Recipe, budget: int) -> list[Configuration]:
    if recipe.drafter not in ("draft-model", "layer-skip"):
        raise ValueError(
            f"{recipe.name} takes no other shapes; vary those of a method with a draft model or"
            " layer-skip"
        )
    pairs, vectors = BUDGET_SHAPES[budget]
    shapes: list[Shape] = [Widths((1,) * budget)]
    for vector in vectors:
        shapes += [Widths(vector), Widths(vector, "independent"), Widths(vector, "greedy-plus-one")]
    for count, length in pairs:
        shapes += [
            StochasticBeam(count, length),
            Independent(count, length),
            BestFirst(length, count, budget),
        ]
    shapes.append(Sequoia(budget=budget))
    fit = [shape for shape in shapes if draw_of(shape) in recipe.verifier.exact_for]
    return [Configuration(recipe.name, f"budget {budget}", recipe.name, shape) for shape in fit]


def other_drafters(recipe: methods.Recipe) -> list[Configuration]:
    """The method with other drafters: on its tree where it has one, else such as grow their own."""
    if recipe.shape is not None and not isinstance(recipe.shape, Paths):
        names: Iterable[DrafterName] = ("draft-model", "layer-skip")
    elif recipe.verifier == Match():
        names = ("prompt-lookup", "suffix", "aded", "combined")
    else:
        raise ValueError(
            f"no other drafter makes trees for {recipe.name}; vary its verifier instead"
        )
    labels: dict[DrafterName, str] = {name: f"{recipe.name}, drafter {name}" for name in names}
    labels[recipe.drafter] = recipe.name
    return [
        Configuration(label, recipe=recipe.name, drafter=name) for name, label in labels.items()
    ]
