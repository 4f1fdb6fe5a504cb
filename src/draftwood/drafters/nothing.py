"""No guesses: plain decoding."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.interfaces.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree


@dataclass(frozen=True)
class Nothing:
    """Draft nothing, so that every run of the target gives one token. The base line of every
    comparison.
    """

    name: ClassVar[str] = "nothing"
    needs_logits: ClassVar[bool] = False
    needs_hidden: ClassVar[tuple[int, ...]] = ()

    def start(self, request: DraftRequest) -> DraftSession:
        return self

    def propose(self, root: int, context: Context) -> DraftTree:
        return DraftTree.of([root], [-1])

    def update(self, accepted: VerifiedTree) -> None:
        """Nothing to learn."""
