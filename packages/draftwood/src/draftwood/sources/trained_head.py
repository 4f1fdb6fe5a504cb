"""Draft with what an EAGLE head holds likely, where asking it pays."""

import ctypes
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from draftwood.arrays import address_of, as_array
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.kinds import require_kind
from draftwood.heads.packed import packed
from draftwood.heads.trained import TrainedHead
from draftwood.models.native import NativeModel
from draftwood.models.verified import DraftRequest
from draftwood.native.drafting import SharedState
from draftwood.native.head import SessionHead
from draftwood.native.head_session import HeadSession
from draftwood.sources.acceptance import RESTING, Resting
from draftwood.sources.source import Evidence, NativeSource

NAME = "eagle"
DEPTHS = 3
"""Levels whose candidates are evidence of their own kind; deeper ones are of the last."""

RANKS = 8
USUAL_SECONDS = (4e-4, 3e-4)
"""Time of asking at the root and deeper, before any was timed."""

ROW_SECONDS = 2e-5
"""Time of a row more that the head takes in."""

USUAL_ROWS = 16
"""Most that a step leaves behind; a prompt has more, and its time says little of a step."""

NEWEST = 32
"""Rows that it takes in at once. Of a longer prompt, or after a longer rest, it reads the newest
alone: it is asked only where that pays, and the time of more rows would forbid it.
"""

FORGETTING = 0.9


class CWorthSettings(ctypes.Structure):
    """``WorthSettings`` of native/worth.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("least", "shortest", "longest")),
        *((name, ctypes.c_double) for name in ("forgetting", "doubt", "reading")),
        *((name, ctypes.c_double) for name in ("strength", "decay", "prior")),
    )


class CTrainedHeadSettings(ctypes.Structure):
    """``TrainedHeadSettings`` of native/sources/trained_head.cpp.

    Attributes:
        kept: what the pointers lead to.
    """

    kept: object
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("session", "found", "layers", "known")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("reads", "levels", "usual_rows", "newest")),
        ("is_timed", ctypes.c_int32),
        *((name, ctypes.c_double) for name in ("inside", "forgetting", "row_seconds")),
        ("seconds", ctypes.c_double * 2),
        ("worth", CWorthSettings),
    )


@dataclass(frozen=True, eq=False)
class TrainedHeadSource:
    """The successors that an EAGLE head drafts, as one source among others.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840). It is asked only where that pays; what it has not
    taken in of the text waits until it is asked again. What it was worth is counted over texts,
    those with temperature 0 apart; where that is nothing, they leave it alone for some time.

    Args:
        head: as the library runs it.
        layers: of the target, whose inputs the head reads.
        inside: share of the target's tokens that are in its draft vocabulary, before any was seen.
        seconds: of asking at the root and deeper, before any question was timed.
        is_timed: whether questions are timed, else the seconds stay.
        resting: when it is left alone; None lets each text begin as the first, and never rests.
        trained: that ``head`` was packed of for ``target``, where it may learn; else None.
    """

    name: ClassVar[str] = "trained-head"
    reads_logits: ClassVar[bool] = False
    head: SessionHead
    layers: tuple[int, ...]
    inside: float = 0.93
    seconds: tuple[float, float] = USUAL_SECONDS
    is_timed: bool = True
    resting: Resting | None = RESTING
    trained: TrainedHead | None = None
    target: NativeModel | None = None

    @classmethod
    def of(cls, trained: TrainedHead, target: NativeModel) -> "TrainedHeadSource":
        """Make the source of an EAGLE head; raises ValueError for a head of another kind."""
        config = require_kind(trained.config, EagleConfig, "auto")
        return cls(packed(trained, target), config.reads, trained=trained, target=target)

    def with_head(self, trained: TrainedHead) -> "TrainedHeadSource":
        """The source with other weights of the same head, for texts to come."""
        assert self.target is not None  # it has a head that learns
        return replace(self, head=packed(trained, self.target), trained=trained)

    @cached_property
    def flags(self) -> np.ndarray:
        """True for each of the target's tokens that is in the draft vocabulary, in bytes."""
        flags = np.zeros(self.head.target_vocabulary, np.uint8)
        flags[as_array(self.head.draft_tokens)] = 1
        return flags

    def native(self, request: DraftRequest) -> NativeSource:
        session = self.session(request)
        layers = (ctypes.c_int32 * len(self.layers))(*self.layers)
        settings = CTrainedHeadSettings(
            session=session.handle,
            found=ctypes.addressof(session.found),
            layers=ctypes.addressof(layers),
            known=address_of(self.flags),
            width=self.head.width,
            reads=len(self.layers),
            levels=DEPTHS,
            usual_rows=USUAL_ROWS,
            newest=NEWEST,
            is_timed=self.is_timed,
            inside=self.inside,
            forgetting=FORGETTING,
            row_seconds=ROW_SECONDS,
            seconds=(ctypes.c_double * 2)(*self.seconds),
            worth=CWorthSettings(*astuple(self.resting or RESTING)),
        )
        settings.kept = (session, layers, self)
        kinds = tuple(Evidence(NAME, depth + 1) for depth in range(DEPTHS))
        worth = self._worth(settings, request.sampler.greedy)
        rests = worth is not None
        return NativeSource(
            self.name, settings, kinds, worth, self.layers, is_slow=True, rests=rests
        )

    def _worth(self, settings: CTrainedHeadSettings, greedy: bool) -> SharedState | None:
        """Counts that texts share: all with temperature 0, or all others."""
        if self.resting is None:
            return None
        known = self._worths.get(greedy)  # where two threads make one, both take the first
        return known or self._worths.setdefault(greedy, SharedState(self.name, settings))

    @cached_property
    def _worths(self) -> dict[bool, SharedState]:
        return {}

    def session(self, request: DraftRequest) -> HeadSession:
        """Start the head on the text of a request."""
        sampling = request.row_sampling
        key = None if request.sampler.greedy else request.rng.next_draw[0]
        return self.head.start(min(RANKS, self.head.vocab_size), sampling.temperature, key)
