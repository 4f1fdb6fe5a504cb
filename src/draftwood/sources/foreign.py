"""A source that only Python has, in a tree that C++ grows."""

from collections.abc import Mapping
from typing import Any

from draftwood.interfaces.source import Evidence, SourceSession
from draftwood.native.drafting import CandidateBuffer


class ForeignSession:
    """Answers what ``native/foreign.h`` asks.

    Args:
        session: of the source.
        numbers: of kinds of evidence in C++.
    """

    def __init__(self, session: SourceSession, numbers: Mapping[Evidence, int]) -> None:
        self.session, self.numbers = session, numbers
        self.states: dict[int, Any] = {}  # by node of the tree that grows now
        self.buffer = CandidateBuffer()

    def ask(self, node: int, parent: int, token: int) -> int:
        """The address of what may follow a node; its parent was asked about before."""
        session = self.session
        if parent < 0:
            self.states = {}
            state = session.begin(token)
        else:
            state = session.advance(self.states[parent], token)
        self.states[node] = state
        return self.buffer.write(session.candidates(state), self.numbers)
