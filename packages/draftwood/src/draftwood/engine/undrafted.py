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


def require_drafted(tree: DraftTree, drafter: Drafter, emitted: int) -> None:
    """Raise ValueError where draft tokens were drawn from what is no number.

    A verifier might accept any of them.

    Args:
        drafter: of the tree, which did not replace such rows.
        emitted: tokens of the text so far.
    """
    drawn = None if tree.rows is not None else tree.drawn_chances()  # rows never are
    if drawn is not None and not bool((drawn >= 0.0).all()):
        raise ValueError(
            f"{drafter.name} drafted token {emitted + 1} of the text and those behind it from"
            " probabilities that are NaN: the draft model's weights are damaged, or its dtype is"
            " too small for it"
        )
