"""Protocol of a shape: a tree grown from distributions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float
from draftwood.rng import Rng
from draftwood.tree import UNBOUNDED, DraftTree, Draw

if TYPE_CHECKING:
    from draftwood.native.drawn_trees import DrawnShape

Expand = Callable[[DraftTree, int], Float[np.ndarray, "nodes vocab"]]


@runtime_checkable
class Shape(Protocol):
    """Settings of a tree, and what they come to.

    ``check_shape`` compares this statement with trees.
    """

    name: ClassVar[str]

    @property
    def draw(self) -> Draw:
        """Draw of the siblings of its trees."""
        ...

    @property
    def nodes(self) -> int:
        """Most nodes it drafts, the root excluded."""
        ...

    @property
    def depth(self) -> int:
        """Levels that the drafter expands for one tree, each by a call of ``expand``."""
        ...

    @property
    def label(self) -> str:
        """Its settings in a few words, for reports: "widths 3-2-1"."""
        ...

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        """A tree below ``root`` with at most ``max_draft_len`` nodes in a row.

        Args:
            expand: given a tree and a node, the distributions after the nodes from that one on.
        """
        ...


@runtime_checkable
class ChosenChain(Protocol):
    """A shape whose trees are chains, which users may choose the length of."""

    @property
    def depth(self) -> int: ...

    def with_length(self, length: int) -> Shape:
        """The same chain, of so many draft tokens at most."""
        ...


def takes_logits(shape: Shape) -> bool:
    """True if ``expand`` may give a shape ``LogitRows``; others get arrays.

    A subclass of such a shape has to say so again, in ``takes_logits``, as it may grow its trees in
    another way.
    """
    return vars(type(shape)).get("takes_logits", False)


def drawn_shape(shape: Shape) -> "DrawnShape | None":
    """The shape as the library draws it; None where Python does.

    A subclass has to say so again, in a property ``drawn_shape``.
    """
    has_one = "drawn_shape" in vars(type(shape))
    return getattr(shape, "drawn_shape") if has_one else None  # noqa: B009
