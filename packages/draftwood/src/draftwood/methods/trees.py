"""Trees that users choose by a text, for instance 4x3, 3,2,1 or best:8, and shapes made of them.

Nothing that runs a model is imported before a shape is made, so that refusals take no time.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from operator import mul
from typing import TYPE_CHECKING, Any

from draftwood.methods.listings import Form, Named, listing, listings
from draftwood.methods.needs import is_built

if TYPE_CHECKING:
    from draftwood.methods.composition import MethodSpec
    from draftwood.shapes import Shape

EXAMPLES: Mapping[Form, str] = {
    "beams": "4x3 (4 beams or chains of 3 tokens)",
    "widths": "3,2,1 (children of each node, level by level)",
    "best": "best:8 or best:8x4 (the 8 best nodes, on at most 4 levels)",
    "chain": "4 (a chain of 4 tokens)",
}
"""Each form as a user writes it."""
SHORT: Mapping[Form, str] = {form: text.split(" ", 1)[0] for form, text in EXAMPLES.items()}
"""Each form in one word."""
HELP = "Draft tree of the method: 4x3, 3,2,1, best:8 or 4; see 'draftwood methods --all'."

MOST_NODES = 256
"""Most nodes of a tree: rows that the library runs in one pass of a head."""
LEVELS = 4
"""Levels of ``best`` where nothing bounds them."""

_FORMS: Mapping[Form, str] = {
    "beams": r"(\d+)x(\d+)",
    "widths": r"\d+(?:,\d+)+",
    "best": r"best:(\d+)(?:x(\d+))?",
    "chain": r"(\d+)",
}


@dataclass(frozen=True)
class Tree:
    """A tree as a user asks for it.

    Attributes:
        numbers: of the form, all above 0.
    """

    form: Form
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> "Tree":
        """Read a text.

        Raises:
            TypeError: for what is no text.
            ValueError: for a text of no form, for a tree of more than ``MOST_NODES`` nodes, and for
                one of more levels than nodes.
        """
        if not isinstance(text, str):
            raise TypeError(f"a tree is a text such as 4x3, got {text!r:.80}")
        plain = text.replace(" ", "").lower()
        fitting: list[Form] = [each for each in _FORMS if re.fullmatch(_FORMS[each], plain[:256])]
        numbers = tuple(map(int, re.findall(r"\d+", plain[:256])))
        if not fitting or 0 in numbers:
            raise ValueError(
                f"{text!r:.80} is no tree; write {_listed(EXAMPLES)}, in whole numbers above 0"
            )
        tree = cls(fitting[0], numbers)
        if tree.nodes > MOST_NODES:
            raise ValueError(f"{text!r:.80} has more than {MOST_NODES} nodes; write a smaller tree")
        if tree.depth > tree.nodes:
            raise ValueError(f"{text!r:.80} has more levels than nodes; write fewer levels")
        return tree

    @property
    def nodes(self) -> int:
        """Nodes, the root not counted."""
        if self.form == "widths":
            return sum(accumulate(self.numbers, mul))
        return self.numbers[0] * self.numbers[1] if self.form == "beams" else self.numbers[0]

    @property
    def depth(self) -> int:
        """Levels below the root, as far as the text bounds them."""
        if self.form == "widths":
            return len(self.numbers)
        return 1 if self.form == "best" and len(self.numbers) == 1 else self.numbers[-1]


Maker = Callable[[Any, Tree], "Shape"]
"""Make a shape of a tree, given a method's usual shape."""


def forms_of(recipe: "MethodSpec") -> tuple[Form, ...]:
    """Forms of the trees that a method can draw; a method published as a chain stays one."""
    shape = recipe.shape
    if "shape" not in recipe.uses:
        return ()
    if shape is None:
        return ("best",) if recipe.drafter.searches else ()
    chain = getattr(shape, "widths", (0,)) == (1,) * shape.nodes
    return ("chain",) if chain else tuple(_makers_for(shape))


def shape_of(text: str, recipe: "MethodSpec", levels: int | None = None) -> "Shape":
    """The shape of a tree for a method, drawn as its paper draws.

    Args:
        text: that the user chose.
        levels: most levels that a trained head drafts; bounds ``best`` without levels of its own.

    Raises:
        ValueError: as ``Tree.of``, and for a tree that the method cannot draw, with those it can.
    """
    from draftwood.shapes import BestFirst

    tree = Tree.of(text)
    require_form(recipe, tree)
    if tree.form == "best" and len(tree.numbers) == 1:
        most = getattr(recipe.shape, "max_depth", LEVELS) if recipe.shape else tree.nodes
        depth = min(tree.nodes, most, levels or most)
        tree = replace(tree, numbers=(tree.nodes, depth))
    usual = recipe.shape or BestFirst()
    known = text_of(usual)
    if known is not None and usual.nodes == tree.nodes and Tree.of(known) == tree:
        return usual  # with what no text says, such as where it ends early
    return _makers_for(usual)[tree.form](usual, tree)


def text_of(shape: "Shape | None") -> str | None:
    """A shape as a user would write it; None where no text says it."""
    from draftwood import shapes
    from draftwood.shapes.shape import ChosenChain

    match shape:
        case shapes.Widths(widths=widths) if max(widths) == 1:
            return str(len(widths))
        case shapes.Widths(widths=widths) if len(widths) > 1:
            return ",".join(map(str, widths))
        case shapes.StochasticBeam() | shapes.Independent():
            beams = shape.nodes // shape.depth
            return f"{beams}x{shape.depth}"
        case shapes.BestFirst(size=nodes, depth=depth):
            return f"best:{nodes}x{min(depth, nodes)}"
        case shapes.Sequoia(budget=nodes, max_depth=depth):
            return f"best:{nodes}x{min(depth, nodes)}"
        case ChosenChain():
            return str(shape.depth)
        case _:
            return None


def require_tree(methods: Sequence[Any], text: str | None, levels: int | None = None) -> None:
    """Refuse a text that is no tree, and a tree that none of these methods can draw.

    Args:
        methods: names, recipes or built methods.
        levels: most levels that the trained head drafts; None where nothing bounds them.

    Raises:
        TypeError, ValueError: with what is wrong and how to mend it.
    """
    if text is None:
        return
    tree = Tree.of(text)
    built = next((each for each in methods if is_built(each)), None)
    if built is not None:
        raise ValueError(f"method {built.name!r} is built already; leave the tree out")
    if not any(tree.form in listing(each).trees for each in methods):
        require_form(methods[0], tree)
    require_levels(tree, levels)


def trees_of(methods: Sequence[str], text: str | None) -> dict[str, str | None]:
    """The tree of each method: the given one where it can draw that, else its usual one."""
    form = None if text is None else Tree.of(text).form
    return {name: text if form in listing(name).trees else None for name in methods}


def require_form(method: Named, tree: Tree) -> None:
    """Raise ValueError for a tree that a method cannot draw, listing those it can."""
    known = listing(method)
    if tree.form in known.trees:
        return
    others = [
        each.name for each in listings().values() if tree.form in each.trees and each.lossless
    ]
    cure = f"for this tree choose another method, for instance {' or '.join(others[:3])}"
    if not known.trees:
        raise ValueError(f"method {known.name!r} takes no tree; leave it out, or {cure}")
    drawn = _listed(known.trees)
    raise ValueError(f"method {known.name!r} draws no such tree; write {drawn}, or {cure}")


def require_levels(tree: "Tree | Shape", levels: int | None) -> None:
    """Raise ValueError for a tree that is deeper than a trained head drafts."""
    if levels is not None and tree.depth > levels:
        raise ValueError(
            f"the tree has {tree.depth} levels and the head drafts {levels}; write a tree of at"
            f" most {levels}, or take a head that drafts more"
        )


def require_context(shape: "Shape", context: int | None) -> None:
    """Raise ValueError for a tree that is deeper than the model's context."""
    if context is not None and shape.depth >= context:
        raise ValueError(
            f"the tree has {shape.depth} levels and the model reads {context} tokens; write a tree"
            f" of at most {context - 1}"
        )


def _listed(forms: Sequence[Form] | Mapping[Form, str]) -> str:
    said = [text for form, text in EXAMPLES.items() if form in forms]
    return " or ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _makers_for(usual: "Shape") -> "Mapping[Form, Maker]":
    """Makers of shapes for a method by its usual one."""
    from draftwood.shapes.shape import ChosenChain

    chain: Mapping[Form, Maker] = {"chain": lambda usual, tree: usual.with_length(tree.depth)}
    return chain if isinstance(usual, ChosenChain) else _makers().get(type(usual), {})


def _makers() -> "Mapping[type, Mapping[Form, Maker]]":
    """Makers of shapes by the kind of a method's usual one."""
    from draftwood import shapes

    def widths(usual: Any, tree: Tree) -> "Shape":
        return shapes.Widths(_widths(tree), usual.draw)

    def beams(usual: Any, tree: Tree) -> "Shape":
        return type(usual)(*(tree.numbers if tree.form == "beams" else (1, tree.depth)))

    def ranks(usual: Any, tree: Tree) -> "Shape":
        return shapes.Paths(tuple(rank_paths(_widths(tree))))

    def best(usual: Any, tree: Tree) -> "Shape":
        width = max(usual.width, -(-tree.nodes // tree.depth)) if tree.form == "best" else 1
        return shapes.BestFirst(tree.depth, width, tree.nodes)

    def planned(usual: Any, tree: Tree) -> "Shape":
        ranks = usual.acceptance if tree.form == "best" else usual.acceptance[:1]
        return replace(usual, acceptance=ranks, budget=tree.nodes, max_depth=tree.depth)

    return {
        shapes.Widths: {"widths": widths, "chain": widths},
        shapes.StochasticBeam: {"beams": beams, "chain": beams},
        shapes.Independent: {"beams": beams, "chain": beams},
        shapes.BestFirst: {"best": best, "widths": ranks, "chain": best},
        shapes.Paths: {"widths": ranks, "chain": ranks},
        shapes.Sequoia: {"best": planned, "chain": planned},
    }


def _widths(tree: Tree) -> tuple[int, ...]:
    return tree.numbers if tree.form == "widths" else (1,) * tree.depth


def rank_paths(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Rank paths of a tree with so many children below each node."""
    levels = range(1, len(widths) + 1)
    return [path for depth in levels for path in product(*map(range, widths[:depth]))]
