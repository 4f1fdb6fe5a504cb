"""Drafters whose numbers are none."""

import warnings

from draftwood.drafters.drafter import Drafter, DraftSession, VerifiedTree
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.sampling import Context
from draftwood.tree import UNBOUNDED, DraftTree


class _Undrafted(DraftSession):
    """The rest of a text whose drafter is broken."""

    def propose(self, root: int, context: Context) -> DraftTree:
        return DraftTree.of([root], [-1])

    def update(self, verified: VerifiedTree) -> None:
        """Nothing to learn."""

    def native(self, context: Context) -> NativeDraft | None:
        return NativeDraft(in_a_row=UNBOUNDED)

    def commit_native(self, step: NativeStep) -> DraftTree:
        return DraftTree.of(step.tokens, step.parents)


def without_drafts(drafter: Drafter) -> DraftSession:
    """Replace a broken drafter's session for the rest of a text, with a warning."""
    warnings.warn(
        f"{drafter.name} says NaN or infinity of what comes next, so texts go on without its"
        " drafts: its weights are damaged, or its dtype is too small for it; load it again, in"
        " float32 where it was in another dtype",
        stacklevel=2,
    )
    return _Undrafted()
