"""Successors that a session of the library's head found."""

from typing import NamedTuple

from draftwood.native.head_session import HeadSession


class Found(NamedTuple):
    """Successors of some rows, best first.

    Attributes:
        tokens: of each row, in the target's vocabulary.
        log_probs: of these under a softmax over the draft vocabulary.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]


def found_of(session: HeadSession) -> Found:
    """Read the successors of the rows of a session's last call."""
    found, ranks = session.found, session.found.ranks
    parts = [slice(row * ranks, (row + 1) * ranks) for row in range(len(session.logits()))]
    return Found(*([each[part] for part in parts] for each in (found.tokens, found.log_probs)))
