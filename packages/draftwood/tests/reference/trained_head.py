"""The session of a trained head: native/sources/trained_head.cpp."""

import ctypes
import math
import time
from collections.abc import Sequence
from functools import reduce
from typing import Any

from draftwood.arrays import below
from draftwood.drafters.drafter import DraftRequest
from draftwood.sources.asked import AskedNode
from draftwood.sources.source import Candidates, Evidence, TargetUpdate
from draftwood.sources.trained_head import (
    DEPTHS,
    FORGETTING,
    NAME,
    NEWEST,
    ROW_SECONDS,
    USUAL_ROWS,
    TrainedHeadSource,
)
from reference.successors import found_of


class TrainedHeadSession:
    """The head's part in one request.

    A row of the head needs the token behind it, so the newest always waits for the root.
    """

    anywhere = False  # a row needs the one above it

    def __init__(self, source: TrainedHeadSource, request: DraftRequest) -> None:
        self.hidden = source.layers
        self.rng = None if request.sampler.greedy else request.rng
        self.session = source.session(request)
        self.source, self.inside = source, source.inside
        self.known = frozenset(source.head.draft_tokens.tolist())
        self.late: list[int] = []  # tokens of the text whose rows are not taken in
        self.states: list[list[Any]] = [[] for _ in source.layers]
        self.rows = 0  # drafted since the last row was taken in
        self.seconds = (ctypes.c_double * 2)(*source.seconds)
        self.step_seconds = source.seconds[0]
        self.taken = 0  # rows with the last question at a root
        self.answering = 0.0  # seconds

    def learn(self, news: TargetUpdate) -> None:
        accepted = news.accepted
        if accepted.output is None:  # nothing was computed
            self.late, self.states = [], [[] for _ in self.hidden]
            return
        path = list(accepted.path)[-NEWEST:]
        for kept, layer in zip(self.states, self.hidden, strict=True):
            # what the library wrote is overwritten by the next pass
            kept.append(accepted.output.states(layer)[path])
        tokens = accepted.tokens
        self.late = (self.late + tokens)[-NEWEST:]
        for token in tokens:
            self.inside += 0.01 * ((token in self.known) - self.inside)
        self.seconds[0] = self.step_seconds + ROW_SECONDS * len(self.late)

    def begin(self, root: int) -> AskedNode:
        return AskedNode(None, root)

    def advance(self, state: AskedNode, token: int) -> AskedNode:
        return AskedNode(state, token)

    def candidates(self, state: AskedNode) -> Sequence[Candidates]:
        since = time.perf_counter()
        if state.parent is None:
            self._take_in(state.token)
        else:
            self.session.level([state.parent.row], [state.token])
            state.row, self.rows = self.rows, self.rows + 1
        self._count(state.depth > 0, time.perf_counter() - since)
        found = found_of(self.session)
        if math.isnan(found.log_probs[0][0]):  # of a broken head, or of broken states
            return []
        probs = {
            token: self.inside * math.exp(log_prob)
            for token, log_prob in zip(found.tokens[0], found.log_probs[0], strict=True)
        }
        return [(Evidence(NAME, min(state.depth, DEPTHS - 1) + 1), probs)]

    def spent(self) -> float:
        spent, self.answering = self.answering, 0.0
        return spent

    def _take_in(self, root: int) -> None:
        """Take in all rows whose next token is known."""
        states = [reduce(below, kept)[-NEWEST:] for kept in self.states]
        place = 0 if self.rng is None else self.rng.next_draw[1]
        self.taken = len(self.late)
        self.session.take(states, [*self.late[1:], root], place=place)
        self.late, self.rows = [], 0
        self.states = [[] for _ in self.hidden]

    def _count(self, deep: bool, seconds: float) -> None:
        if not self.source.is_timed:
            return
        if self.taken <= USUAL_ROWS:
            self.answering += seconds
        if deep:
            self.seconds[1] += (1 - FORGETTING) * (seconds - self.seconds[1])
        elif self.taken <= USUAL_ROWS:
            seconds -= ROW_SECONDS * self.taken
            self.step_seconds += (1 - FORGETTING) * (seconds - self.step_seconds)
