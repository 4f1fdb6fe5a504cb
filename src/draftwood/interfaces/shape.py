"""What a drafter needs of a shape: a tree grown from distributions."""

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.rng import Rng
from draftwood.tree import UNBOUNDED, DraftTree

Expand = Callable[[DraftTree, int], Float[Tensor, "nodes vocab"]]


@runtime_checkable
class Shape(Protocol):
    """Settings of a tree; ``nodes`` is the most nodes it drafts, the root excluded, ``room`` the
    most in a row.
    """

    name: ClassVar[str]

    @property
    def nodes(self) -> int: ...

    def grow(self, root: int, expand: Expand, rng: Rng, room: int = UNBOUNDED) -> DraftTree: ...
