"""What an EAGLE head holds likely, asked where its time pays."""

import ctypes
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from draftwood.heads.eagle import EagleHead
from draftwood.heads.kinds import require_kind
from draftwood.heads.native_eagle import NativeEagle
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.verified import DraftRequest
from draftwood.native.head_session import Found
from draftwood.sources.base import AskedNode, sampling_of_rows
from draftwood.sources.source import (
    Candidates,
    Evidence,
    NativeSource,
    SourceSession,
    TargetUpdate,
)

NAME = "eagle"
DEPTHS = 3
"""Levels whose candidates are evidence of their own kind; deeper ones are of the last."""

RANKS = 8
USUAL_SECONDS = (4e-4, 3e-4)
"""Of asking at the root and deeper, before any was timed."""

ROW_SECONDS = 2e-5
"""Of a row more that the head takes in."""

USUAL_ROWS = 16
"""Most that a step leaves behind; a prompt has more, and its time says little of a step."""

NEWEST = 32
"""Rows that it takes in at once. Of a longer prompt, or after a longer rest, it reads the newest
alone: older ones change its drafts little, and each takes its time.
"""

FORGETTING = 0.9


class CTrainedHeadSettings(ctypes.Structure):
    """``TrainedHeadSettings`` of native/sources/trained_head.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("session", "found", "layers", "known")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("reads", "levels", "usual_rows", "newest")),
        ("is_timed", ctypes.c_int32),
        *((name, ctypes.c_double) for name in ("inside", "forgetting", "row_seconds")),
        ("seconds", ctypes.c_double * 2),
    )


@dataclass(frozen=True, eq=False)
class TrainedHeadSource:
    """The successors that an EAGLE head drafts, as one source among others.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840). It is asked only where that pays; what it has not
    taken in of the text waits until it is asked again.

    Args:
        head: as the library runs it.
        layers: of the target, whose inputs the head reads.
        inside: share of the target's tokens that are in its draft vocabulary, before any was seen.
        seconds: of asking at the root and deeper, before any question was timed.
        is_timed: whether questions are timed, else the seconds stay.
    """

    name: ClassVar[str] = "trained-head"
    reads_logits: ClassVar[bool] = False
    head: NativeEagle
    layers: tuple[int, ...]
    inside: float = 0.93
    seconds: tuple[float, float] = USUAL_SECONDS
    is_timed: bool = True

    @classmethod
    def of(cls, trained: TrainedHead, target: Model) -> "TrainedHeadSource":
        """That of a drafter's folder.

        Raises:
            ValueError: for a drafter of another kind, and targets on another path.
        """
        head = require_kind(trained.head, EagleHead, "auto")
        if not isinstance(target, NativeModel):
            raise ValueError(
                "auto takes a drafter where its target runs natively, which this one does not; take"
                " method eagle, or leave the drafter out"
            )
        tokens = trained.draft_tokens
        rows = head.lm_head.weight.detach() if head.config.own_head else None
        rows = target.lm_head.outputs(tokens) if rows is None else rows
        scale = target.embedding_scale
        # four bits change what an output head says, and hardly what a layer does
        native = NativeEagle(head, tokens, rows, target.embedding, scale, "int4", "int8")
        return cls(native, tuple(head.config.reads))

    @cached_property
    def known(self) -> frozenset[int]:
        """The draft vocabulary."""
        return frozenset(self.head.draft_tokens.tolist())

    @cached_property
    def flags(self) -> Tensor:
        """Whether each of the target's tokens is one of them, in bytes."""
        flags = torch.zeros(self.head.target_vocabulary, dtype=torch.uint8)
        flags[self.head.draft_tokens] = 1
        return flags

    def start(self, request: DraftRequest) -> SourceSession:
        return _HeadSession(self, request)


class _HeadSession:
    """The head's part in one request.

    A row of the head needs the token behind it, so the newest always waits for the root.
    """

    anywhere = False  # a row needs the one above it

    def __init__(self, source: TrainedHeadSource, request: DraftRequest) -> None:
        self.hidden = source.layers
        sampling = sampling_of_rows(request.sampler)
        self.rng = None if request.sampler.greedy else request.rng
        key = None if self.rng is None else self.rng.next_draw[0]
        ranks = min(RANKS, source.head.vocab_size)
        self.session = source.head.start(ranks, sampling.temperature, key)
        self.source, self.inside = source, source.inside
        self.late: list[int] = []  # tokens of the text whose rows are not taken in
        self.states: list[list[Tensor]] = [[] for _ in source.layers]
        self.rows = 0  # drafted since the last row was taken in
        self.seconds = (ctypes.c_double * 2)(*source.seconds)
        self.step_seconds = source.seconds[0]
        self.taken = 0  # rows with the last question at a root
        self.answering = 0.0  # seconds

    def native(self) -> NativeSource:
        source, layers = self.source, (ctypes.c_int32 * len(self.hidden))(*self.hidden)
        settings = CTrainedHeadSettings(
            session=self.session.handle,
            found=ctypes.addressof(self.session.found),
            layers=ctypes.addressof(layers),
            known=source.flags.data_ptr(),
            width=source.head.shape.hidden,
            reads=len(self.hidden),
            levels=DEPTHS,
            usual_rows=USUAL_ROWS,
            newest=NEWEST,
            is_timed=source.is_timed,
            inside=source.inside,
            forgetting=FORGETTING,
            row_seconds=ROW_SECONDS,
            seconds=self.seconds,
        )
        kinds = tuple(Evidence(NAME, depth + 1) for depth in range(DEPTHS))
        return NativeSource("trained-head", settings, kinds, (self.session, layers, source))

    def learn(self, news: TargetUpdate) -> None:
        accepted = news.accepted
        if accepted.output is None:  # nothing was computed
            self.late, self.states = [], [[] for _ in self.hidden]
            return
        path = list(accepted.path)[-NEWEST:]
        for kept, layer in zip(self.states, self.hidden, strict=True):
            # what the library wrote is overwritten by the next pass
            kept.append(accepted.output.hidden[layer][path])
        tokens = accepted.tokens
        self.late = (self.late + tokens)[-NEWEST:]
        for token in tokens[1:]:
            self.inside += 0.01 * ((token in self.source.known) - self.inside)
        self.seconds[0] = self.step_seconds + ROW_SECONDS * len(self.late)

    def begin(self, root: int) -> AskedNode:
        return AskedNode(None, root)

    def advance(self, state: AskedNode, token: int) -> AskedNode:
        return AskedNode(state, token)

    def candidates(self, state: AskedNode) -> Sequence[Candidates]:
        since = time.perf_counter()
        if state.parent is None:
            found = self._take_in(state.token)
        else:
            found = self.session.level([state.parent.row], [state.token])
            state.row, self.rows = self.rows, self.rows + 1
        self._count(state.depth > 0, time.perf_counter() - since)
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

    def _take_in(self, root: int) -> Found:
        """All rows whose next token is known."""
        states = [torch.cat(kept)[-NEWEST:] for kept in self.states]
        place = 0 if self.rng is None else self.rng.next_draw[1]
        self.taken = len(self.late)
        found = self.session.take(states, [*self.late[1:], root], place=place)
        self.late, self.rows = [], 0
        self.states = [[] for _ in self.hidden]
        return found

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
