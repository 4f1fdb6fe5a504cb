"""A source that only Python has, in a tree that C++ grows."""

from collections.abc import Mapping
from typing import Any

from draftwood.native.drafting import CandidateBuffer
from draftwood.sources.source import Evidence, SourceSession


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

    def ask(self, node: int, parent: int, token: int, wanted: int) -> int:
        """The address of what may follow a node, if that is wanted; its parent is known."""
        session = self.session
        if parent < 0:
            self.states = {}
            self.states[node] = session.begin(token)
        elif node not in self.states:
            self.states[node] = session.advance(self.states[parent], token)
        candidates = session.candidates(self.states[node]) if wanted else ()
        return self.buffer.write(candidates, self.numbers)
