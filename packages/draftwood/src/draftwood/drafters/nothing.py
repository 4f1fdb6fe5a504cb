"""No draft tokens: plain decoding."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.sampling import Context
from draftwood.tree import UNBOUNDED, DraftTree


@dataclass(frozen=True)
class Nothing(Drafter, DraftSession):
    """Draft nothing, so that every forward pass of the target gives one token.

    This is the base line of every comparison.

    Example:
        >>> one_step(Nothing(), writing([1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5])
        OneStep(drafted=[], accepted=[], then=6)
    """

    name: ClassVar[str] = "nothing"

    def start(self, request: DraftRequest) -> DraftSession:
        return self

    def propose(self, root: int, context: Context) -> DraftTree:
        return DraftTree.of([root], [-1])

    def native(self, context: Context) -> NativeDraft | None:
        return NativeDraft(in_a_row=UNBOUNDED) if type(self) is Nothing else None

    def commit_native(self, step: NativeStep) -> DraftTree:
        return DraftTree.of(step.tokens, step.parents)

    def update(self, verified: VerifiedTree) -> None:
        """Nothing to learn."""
