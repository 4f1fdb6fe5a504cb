"""Drafters whose numbers are none."""

import warnings

from draftwood.drafters.drafter import Drafter, DraftSession
from draftwood.drafters.nothing import Nothing


def without_drafts(drafter: Drafter) -> DraftSession:
    """Replace a broken drafter's session for the rest of a text, with a warning."""
    warnings.warn(
        f"{drafter.name} says NaN or infinity of what comes next, so texts go on without its"
        " drafts: its weights are damaged, or its dtype is too small for it; load it again, in"
        " float32 where it was in another dtype",
        stacklevel=2,
    )
    return Nothing()
