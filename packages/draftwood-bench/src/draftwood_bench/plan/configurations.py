"""Configurations to measure side by side, and the sets of them that comparisons need."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwood import methods
from draftwood.drafters.drafter import Drafter
from draftwood.shapes import BestFirst, Paths, Shape, Widths
from draftwood.verifiers import Verifier

PLAIN = "plain"
BUDGET_SHAPES: dict[int, tuple[list[tuple[int, int]], list[tuple[int, ...]]]] = {
    # target budget: (chains or beams, length), and branching vectors; each uses the budget up
    4: ([(2, 2), (4, 1)], [(2, 1), (4,)]),  # ours, for passes that grow dear soon
    6: ([(2, 3), (3, 2)], [(2, 1, 1), (2, 2), (3, 1)]),
    10: ([(2, 5), (5, 2)], [(2, 1, 1, 1, 1), (2, 2, 1), (5, 1)]),
    14: ([(2, 7), (7, 2)], [(2, 1, 1, 1, 1, 1, 1), (2, 2, 2), (7, 1)]),
    21: ([(3, 7), (7, 3)], [(3, 1, 1, 1, 1, 1, 1), (3, 2, 2), (7, 1, 1)]),
    30: ([(5, 6), (6, 5)], [(2, 2, 2, 2), (5, 1, 1, 1, 1, 1), (6, 1, 1, 1, 1)]),
}
PAPER_BUDGETS = (6, 10, 14, 21, 30)
"""Budgets of Jeon et al. 2024, arXiv:2402.14160."""


@dataclass(frozen=True)
class Configuration:
    """One configuration of a method to measure.

    Attributes:
        method: its label.
        at: where it is, for instance ``length 3``.
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
    drafter: type[Drafter] | None = None
    batch: int | None = None
    rate: float | None = None

    @property
    def key(self) -> str:
        """Key that identifies the configuration."""
        parts = [self.method, self.at, *([repr(self.shape)] if self.shape is not None else [])]
        return " | ".join(parts)

    @property
    def base(self) -> methods.MethodSpec:
        return methods.recipe(self.recipe or self.method)

    @property
    def tree(self) -> Shape | None:
        """The shape that is used, where there is one."""
        return self.shape or self.base.shape

    @property
    def rule(self) -> Verifier:
        return self.verifier or self.base.verifier

    @property
    def drafts_with(self) -> type[Drafter]:
        return self.drafter or self.base.drafter

    @property
    def varied(self) -> methods.MethodSpec:
        """MethodSpec with the configuration's own parts, under its label."""
        return replace(
            self.base,
            name=self.method,
            drafter=self.drafts_with,
            shape=self.tree,
            verifier=self.rule,
        )

    @property
    def lossless(self) -> bool:
        return self.varied.lossless

    @property
    def draft_steps(self) -> int | None:
        """Forward passes of the draft model or head per tree; None without either."""
        other = {"draft-model", "head"} & self.drafts_with.needs
        return self.tree.depth if other and self.tree is not None else None


def with_trees(names: Sequence[str], tree: str | None) -> list[Configuration]:
    """Methods by name, those that can draw a tree with it in the place of their usual one."""
    found = []
    for name, own in methods.trees_of(names, tree).items():
        one = Configuration(name)
        if own is not None:
            one = replace(one, at=f"tree {own}", shape=methods.shape_of(own, methods.recipe(name)))
        found.append(one)
    return found


_TREES = ("spectr", "specinfer", "rsd-c", "rsd-s")
RSD_METHODS: dict[str, tuple[str, str]] = {
    # what they are made of: a recipe, and the one whose rule they keep tokens by
    **{name: (name, name) for name in ("speculative", "block", *_TREES)},
    "rsd-c + greedy-plus-one": ("greedy-plus-one", "greedy-plus-one"),
    **{f"{name} + traversal": (name, "traversal") for name in _TREES},
}


def rsd_configuration(
    name: str, at: str, vector: tuple[int, ...], beams: tuple[int, int], chain: tuple[int, ...]
) -> Configuration:
    recipe, rule = RSD_METHODS[name]
    if recipe in ("spectr", "rsd-s"):
        shape = beams_of(recipe, *beams)
    else:
        tree = chain if recipe in ("speculative", "block") else vector
        shape = replace(methods.recipe(recipe).shape, widths=tree)  # type: ignore[type-var]
    return Configuration(name, at, recipe, shape, methods.recipe(rule).verifier)


def beams_of(recipe: str, count: int, length: int) -> Shape:
    """Shape of some beams or independent chains, as a method draws them."""
    return methods.shape_of(f"{count}x{length}", methods.recipe(recipe))


def urgency(cell: Configuration) -> tuple[int, int, int, int]:
    kind, size = cell.at.split()
    long_chain = kind == "budget" and cell.recipe in ("speculative", "block")
    slow = cell.rule.name == "traversal"
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
    return 1 if shape is None else shape.nodes // shape.depth


def other_verifiers(recipe: methods.MethodSpec) -> list[Configuration]:
    """The method under every rule that is exact for its tree; under its own it keeps its name."""
    if recipe.shape is None:
        raise ValueError(
            f"{recipe.name} grows its own trees; vary the verifier of a method that takes a shape"
        )
    return [
        Configuration(label, recipe=recipe.name, verifier=rule)
        for label, rule in _rules(recipe, recipe.shape)
    ]


def other_shapes(recipe: methods.MethodSpec, budget: int) -> list[Configuration]:
    """The method on every shape that spends the budget and that its verifier is exact for."""
    return [
        Configuration(recipe.name, f"budget {budget}", recipe.name, shape)
        for shape in _shapes(recipe, budget)
        if shape.draw in recipe.verifier.exact_for
    ]


def shapes_and_verifiers(recipe: methods.MethodSpec, budget: int) -> list[Configuration]:
    """The method on every shape that spends the budget, under every rule that is exact for it."""
    return [
        Configuration(label, f"budget {budget}", recipe.name, shape, rule)
        for shape in _shapes(recipe, budget)
        for label, rule in _rules(recipe, shape)
    ]


def _rules(recipe: methods.MethodSpec, shape: Shape) -> list[tuple[str, Verifier]]:
    """The lossless rules for a shape, with what the method is called under each."""
    chain = shape.depth == shape.nodes
    found = []
    for kind in methods.known_parts().verifiers.values():
        own = isinstance(recipe.verifier, kind)
        rule = recipe.verifier if own else kind() if takes(kind) else None
        if own and shape == recipe.shape:
            found.append((recipe.name, recipe.verifier))
        elif rule is not None and shape.draw in kind.exact_for and (chain or kind.name != "block"):
            found.append((recipe.name if own else f"{recipe.name} + {rule.name}", rule))
    return found


def _shapes(recipe: methods.MethodSpec, budget: int) -> list[Shape]:
    if not _grows_a_shape(recipe):
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
            beams_of("rsd-s", count, length),
            beams_of("spectr", count, length),
            BestFirst(length, count, budget),
        ]
    planned = methods.known_parts().shapes["sequoia"](budget=budget)
    return [*shapes, planned, *_found_shapes(budget)]


def _found_shapes(budget: int) -> list[Shape]:
    """Shapes of installed packages: with this budget where they take one, else as they come."""
    kinds: list[Callable[..., Shape]] = [
        kind
        for kind in methods.known_parts().shapes.values()
        if not kind.__module__.startswith("draftwood.")
    ]
    shapes = [kind(budget=budget) for kind in kinds if takes(kind, "budget")]
    shapes += [kind() for kind in kinds if not takes(kind, "budget") and takes(kind)]
    return [shape for shape in shapes if shape.nodes <= budget]


OF_SOME_MODELS = {"mtp"}
"""Drafters that need a layer which few models come with."""


def other_drafters(recipe: methods.MethodSpec) -> list[Configuration]:
    """The method with other drafters: on its tree where it has one, else such as grow their own."""
    known = [
        kind
        for kind in methods.known_parts().drafters.values()
        if kind is not methods.recipe(PLAIN).drafter and kind.name not in OF_SOME_MODELS
    ]
    if _grows_a_shape(recipe):
        kinds = [kind for kind in known if "shape" in kind.uses and fits(recipe, kind)]
    else:
        kinds = [kind for kind in known if "shape" not in kind.uses and fits(recipe, kind)]
    if not any(kind is not recipe.drafter for kind in kinds):
        raise ValueError(
            f"no other drafter makes trees for {recipe.name}; vary its verifier instead"
        )
    labels = {kind: f"{recipe.name}, drafter {kind.name}" for kind in kinds}
    labels[recipe.drafter] = recipe.name
    return [
        Configuration(label, recipe=recipe.name, drafter=kind) for kind, label in labels.items()
    ]


def _grows_a_shape(recipe: methods.MethodSpec) -> bool:
    """True if other drafters can grow the method's tree; a tree of ranks is only filled."""
    return "shape" in recipe.drafter.uses and not isinstance(recipe.shape, Paths)


def fits(recipe: methods.MethodSpec, drafter: type[Drafter]) -> bool:
    """True if a drafter can make trees for a method.

    It makes them in the method's shape, or else with the same kind of draws and without further
    parts. A drafter that needs a trained head drafts for its own methods alone.
    """
    if "head" in drafter.needs:  # a folder holds a network of one kind
        return drafter is recipe.drafter
    if "shape" in drafter.uses:
        grows = recipe.shape is None or isinstance(recipe.shape, drafter.shape_type)
        right = drafter.labels(recipe.shape) <= recipe.verifier.exact_for
        return grows and (right or not recipe.lossless)
    alike = drafter.labels(None) & recipe.drafter.labels(recipe.shape)
    exact = drafter.labels(None) <= recipe.verifier.exact_for
    return bool(alike) and exact and drafter.needs <= recipe.drafter.needs


def takes(kind: Callable[..., Any], *names: str) -> bool:
    """True if a part can be made from these arguments alone."""
    arguments = inspect.signature(kind).parameters
    return set(names) <= set(arguments) and all(
        each.default is not each.empty or each.name in names for each in arguments.values()
    )
