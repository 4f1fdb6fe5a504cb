"""Draft sessions that draft for outcomes that are not known yet."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from draftwood.arrays import Float
from draftwood.drafters.drafter import DraftSession
from draftwood.rng import Rng
from draftwood.tree import DraftTree


def always() -> None:
    """Nothing ends a session's passes: ``go_on`` of one that no other drafts beside."""


class BranchingSession(DraftSession):
    """A draft session of which there can be several for one text, each for another outcome.

    It reads nothing of the target's passes, and draws with an ``Rng`` of its own. What it drafts
    depends on the text and this ``Rng`` alone, so that drafting ahead and drafting later give the
    same trees.

    Attributes:
        go_on: called before each of its passes; what it raises ends the pass.
    """

    go_on: Callable[[], None]

    @property
    def branching(self) -> "BranchingSession":
        return self

    @abstractmethod
    def branch(self, rng: Rng, go_on: Callable[[], None]) -> "BranchingSession":
        """Start another session for the text so far; what happens to one leaves the other as it is.

        Args:
            rng: with which it draws.
            go_on: of that session.
        """

    @abstractmethod
    def logits_after(self, tree: DraftTree) -> Float[np.ndarray, "nodes vocab"] | None:
        """Compute the drafter's logits after each node of the tree that ``propose`` gave last, over
        the target's vocabulary; None where its context ends before.
        """
