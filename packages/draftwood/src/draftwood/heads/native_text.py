"""One text of a trained head that the library runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwood.arrays import Float, address_of, as_array
from draftwood.heads.eagle import NEWEST
from draftwood.models.model import CHUNK
from draftwood.native.head import SessionHead
from draftwood.native.head_drafting import HeadDrafting
from draftwood.native.head_session import MAX_RANKS
from draftwood.tree import DraftTree


class NativeText:
    """Rows of a text, and drafts behind them; implements ``HeadText`` of drafters/head_drafts.py.

    The target's states are read where its output has them. A head that reads states takes in the
    ``NEWEST`` rows of those that wait, one that reads tokens alone all of them.

    Args:
        head: as the library runs it.
        layers: of the target, whose inputs the head reads; none where it reads tokens alone.
        ranks: children that a node of ``drafting`` may have; 0 for no such trees.
        temperature: of the drafts.
    """

    def __init__(
        self, head: SessionHead, layers: Sequence[int], ranks: int = 0, temperature: float = 1.0
    ) -> None:
        self.layers = tuple(layers)
        self.session = head.start(min(ranks, MAX_RANKS, head.vocab_size), temperature)
        self._waiting = 1 if self.layers else 0  # newest tokens whose rows need the root
        self._late: list[int] = []  # tokens of the text whose rows are not taken in
        self._left_out = 0  # rows that never will be
        self._states: list[tuple[list[Any], list[int]]] = []  # by layer; places of these tokens
        self._ahead = 0  # 1 where the root was taken in before it is text
        self._drafting: HeadDrafting | None = None

    def take(
        self,
        tokens: Sequence[int],
        hidden: Mapping[int, Any],
        path: Sequence[int],
    ) -> None:
        self._late += tokens[self._ahead :]
        self._ahead = 0
        if self.layers and not hidden:
            self._left_out += len(self._late)
            self._late, self._states = [], []
        elif self.layers:
            self._states.append(([hidden[layer] for layer in self.layers], [*path]))
            self._leave_out(len(self._late) - NEWEST)
        elif len(self._late) > CHUNK:
            self._take_in(self._late)

    def level(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        if first == 0:
            self._take_in([*self._late[self._waiting :], tree.token_list[0]])
            self._ahead = 1 - self._waiting
        else:
            rows = [parent - 1 for parent in tree.parent_list[first:]]
            self.session.level(rows, tree.token_list[first:])
        return self.session.logits()

    def drop(self) -> None:
        self.session.keep(self.session.length)

    def follow(self, first: "NativeText") -> None:
        known = self.session.length + len(self._late) - self._waiting
        is_alike = first._left_out == self._left_out
        if is_alike and first.session.length >= known > self.session.length:
            self.session.copy(first.session, known)
            self._keep_newest()

    def branch(self) -> "NativeText":
        other = NativeText(self.session.head, self.layers)
        other.session.copy(self.session, self.session.length)
        other._late, other._states, other._ahead = [*self._late], [*self._states], self._ahead
        return other

    def drafting(self, nodes: int, depth: int, width: int, floor: float = 0.0) -> HeadDrafting:
        """Hand the text over to the library, which drafts and learns in its own steps from now on.

        Args:
            nodes, depth, width, floor: see ``HeadDrafting``.
        """
        if self._drafting is None:
            if known := self._late[self._waiting :]:
                self._take_in(known)
            self._drafting = HeadDrafting(self.session, self.layers, nodes, depth, width, floor)
            if self._states:
                states, path = self._states[0]
                rows = [np.ascontiguousarray(as_array(each)[path], np.float32) for each in states]
                addresses = [address_of(each) for each in rows]
                self._drafting.learn(self._late, dict(zip(self.layers, addresses, strict=True)))
        return self._drafting

    def _take_in(self, tokens: Sequence[int]) -> None:
        """Take in as many rows as there are tokens: their own, or those behind them."""
        given, start = self._states or [((), range(len(tokens)))], 0
        for states, path in given:
            some = tokens[start : start + len(path)]
            if some:
                self.session.take(states, some, path[: len(some)])
            start += len(some)
        self._late = self._late[len(tokens) :]
        self._keep_newest()

    def _leave_out(self, count: int) -> None:
        """Forget the oldest rows of those that wait."""
        if count <= 0:
            return
        self._left_out += count
        self._late = self._late[count:]
        while count >= len(self._states[0][1]):
            count -= len(self._states.pop(0)[1])
        states, path = self._states[0]
        self._states[0] = (states, path[count:])

    def _keep_newest(self) -> None:
        """Drop the states of all but the newest token, if that waits."""
        self._late = self._late[-1:] if self._waiting else []
        if not self._late:
            self._states = []
        elif self._states:
            states, path = self._states[-1]
            self._states = [(states, path[-1:])]
