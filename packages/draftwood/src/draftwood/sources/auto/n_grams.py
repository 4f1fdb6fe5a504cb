"""Draft with what the target held likely after the same one or two tokens."""

import ctypes
from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.native.drafting import SharedState
from draftwood.sources.source import NativeSource, kinds_of
from draftwood.validation import positive

MAX_ORDER = 5  # of native/sources/n_grams.cpp
WIDEST = 16  # successors of a context once several rows were averaged


def forgotten(max_contexts: int) -> int:
    """Contexts that are forgotten at once: a quarter."""
    return 1 + max_contexts // 4


class CNGramsSettings(ctypes.Structure):
    """``NGramsSettings`` of native/sources/n_grams.cpp."""

    _fields_ = (
        ("fresh", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("max_contexts", "forgotten")),
        *((name, ctypes.c_int32) for name in ("order", "widest")),
    )


@dataclass(frozen=True, eq=False)
class NGrams:
    """Tables from the newest tokens to the target's own likeliest successors.

    Every node of every forward pass fills them. Each context length names candidates of its own.
    One token of context is the table of Token Recycling (Luo et al. 2024, arXiv:2408.08696) with
    probabilities; longer ones are those of STAND (Song et al. 2025, arXiv:2506.04708).

    Args:
        order: most tokens of context, ``MAX_ORDER`` of them or fewer.
        fresh: weight of the newest forward pass where a context was seen before; 1 forgets what was
            there.
        max_contexts: contexts kept of each length.
        keep: carry the tables over from request to request. Faster on like texts; the tokens stay
            exact, but how fast they come then depends on earlier requests.
    """

    name: ClassVar[str] = "n-grams"
    reads_logits: ClassVar[bool] = True
    in_auto: ClassVar[int] = 2
    order: int = 2
    fresh: float = 0.6
    max_contexts: int = 50_000
    keep: bool = False
    _kept: list[SharedState] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        positive("order and max_contexts", [self.order, self.max_contexts])
        if self.order > MAX_ORDER:
            raise ValueError(f"order must be at most {MAX_ORDER}, got {self.order}")
        if not 0.0 < self.fresh <= 1.0:
            raise ValueError(f"fresh must be above 0 and at most 1, got {self.fresh}")

    def native(self, request: DraftRequest) -> NativeSource:
        settings = CNGramsSettings(
            self.fresh, self.max_contexts, forgotten(self.max_contexts), self.order, WIDEST
        )
        return NativeSource(
            self.name,
            settings,
            tuple(kinds_of(self.name, self.order)),
            self._tables(settings),
        )

    def _tables(self, settings: CNGramsSettings) -> SharedState:
        """Tables in C++ for one request, or for all where they are to be kept."""
        if not self.keep:
            return SharedState(self.name, settings)
        if not self._kept:  # where two threads add one, both take the first
            self._kept.append(SharedState(self.name, settings))
        return self._kept[0]
