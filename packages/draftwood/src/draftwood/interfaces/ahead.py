"""What the engine needs of a draft session to draft for outcomes that are not known yet."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.interfaces.drafter import VerifiedTree
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.tree import DraftTree


@runtime_checkable
class BranchingSession(Protocol):
    """A draft session of which there can be several for one text, each for another outcome.

    It reads nothing of the target's passes, and draws with an ``Rng`` of its own. What it drafts
    depends on the text and this ``Rng`` alone, so that drafting ahead and drafting later give the
    same trees.

    Attributes:
        go_on: called before each of its passes; what it raises ends the pass.
    """

    go_on: Callable[[], None]

    def propose(self, root: int, context: Context) -> DraftTree: ...

    def update(self, verified: VerifiedTree) -> None: ...

    def branch(self, rng: Rng, go_on: Callable[[], None]) -> "BranchingSession":
        """Another session for the text so far; what happens to one leaves the other as it is.

        Args:
            rng: with which it draws.
            go_on: of that session.
        """
        ...

    def logits_after(self, tree: DraftTree) -> Float[Tensor, "nodes vocab"] | None:
        """What the drafter would say after each node of the tree that ``propose`` gave last, over
        the target's vocabulary; None where its context ends before.
        """
        ...

    def close(self) -> None:
        """Give back all that this session took; a second call does nothing."""
        ...
