"""Sources of a merged tree: they learn from every forward pass and name candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.models.model import Model
from draftwood.models.verified import DraftRequest, VerifiedTree
from draftwood.native.rows import topk_probs
from draftwood.sampling import Sampling

if TYPE_CHECKING:
    import ctypes

RANKS = 8
"""Successors that are read from each row of the target's logits."""


class Evidence(NamedTuple):
    """A kind of evidence that candidates rest on; each has a log-weight that is learnt.

    Attributes:
        source: name of the source, as reports call it.
        strength: how much evidence there is, for instance how many tokens of context agree.
    """

    source: str
    strength: int


Candidates = tuple[Evidence, dict[int, float]]
"""A kind and the tokens it holds likely, with probabilities that sum to 1 at most."""


Likeliest = tuple[Int[np.ndarray, "rows ranks"], Float[np.ndarray, "rows ranks"]]
"""Tokens, likeliest first, and their probabilities."""


def likeliest(logits: Float[np.ndarray, "rows vocab"], sampling: Sampling) -> Likeliest:
    """Find the few likeliest next tokens of each row.

    Where a request cuts off unlikely tokens these are left out of the sum, and with them all others
    but the few: sorting dozens of whole rows costs more than all other drafting, and what is learnt
    online makes up for it.
    """
    tokens, probs = topk_probs(logits, min(RANKS, logits.shape[-1]), sampling.temperature)
    if sampling.cuts:
        probs = sampling.probs(np.take_along_axis(logits, tokens, -1))
    return tokens, probs


@dataclass(frozen=True, eq=False)
class TargetUpdate:
    """A forward pass of the target, in the form in which sources read it.

    Attributes:
        accepted: the tree, its accepted path and, where a source reads them, the target's logits.
        sampling: how the few likeliest logits of a row become probabilities.
        quiet: whether only the accepted tokens are to be taken in, since nothing is drafted at
            present.
    """

    ranks: ClassVar[int] = RANKS
    accepted: VerifiedTree
    sampling: Sampling
    quiet: bool = False

    @cached_property
    def likeliest(self) -> "Likeliest":
        """For each node the target's likeliest next tokens; see the function."""
        return likeliest(self.accepted.logits, self.sampling)

    @cached_property
    def rows(self) -> list[dict[int, float]]:
        """The likeliest next tokens of each node, as probabilities by token."""
        tokens, probs = self.likeliest
        pairs = zip(tokens.tolist(), probs.tolist(), strict=True)
        return [dict(zip(row, chances, strict=True)) for row, chances in pairs]


@runtime_checkable
class SourceSession(Protocol):
    """A source's state for one request.

    A ``state`` represents a text that ends in some token: what the source needs to know of it, and
    nothing else.
    """

    def learn(self, news: TargetUpdate) -> None:
        """Take in what a forward pass of the target said.

        The first ones are parts of the prompt, as chains that are all kept.
        """
        ...

    def begin(self, root: int) -> Any:
        """The state after the text so far and the root."""
        ...

    def advance(self, state: Any, token: int) -> Any:
        """The state one token later."""
        ...

    def candidates(self, state: Any) -> Sequence[Candidates]:
        """Name what may come next, by kind of evidence; nothing where nothing is known."""
        ...


@runtime_checkable
class SlowSession(SourceSession, Protocol):
    """A session whose answers take time that may not pay.

    It is asked at the root where that pays by what it was worth before, and below a node at which
    it was asked, or below any.
    """

    @property
    def anywhere(self) -> bool:
        """True if it may be asked below nodes at which it was not."""
        ...

    @property
    def seconds(self) -> "ctypes.Array[ctypes.c_double]":
        """Time of asking at the root and at a deeper node; the same memory at all times."""
        ...

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose hidden states ``learn`` reads, of every forward pass."""
        ...

    def spent(self) -> float:
        """Seconds that answers took since this was asked last."""
        ...


@dataclass(frozen=True, eq=False)
class NativeSource:
    """A source as the library makes it for one request.

    Attributes:
        kind: of a file in ``native/sources/``.
        settings: all the numbers of the source, in the order of that file.
        evidence: the kinds of evidence that it states, in the order in which C++ counts them.
        shared: a ``native.drafting.SharedState`` of several requests, or anything that has to stay
            in memory with the source.
        hidden: layers whose hidden states it reads, of every forward pass.
        width: numbers of such a state, where it must be the target's.
        is_slow: whether it takes its time, as a ``SlowSession`` does.
        rests: whether the library may leave it alone for some time, and its states unread.
    """

    kind: str
    settings: "ctypes.Structure"
    evidence: tuple[Evidence, ...]
    shared: object = None
    hidden: tuple[int, ...] = ()
    width: int | None = None
    is_slow: bool = False
    rests: bool = False


class SourceSettings(Protocol):
    """Settings of any source.

    Attributes:
        name: as reports call it.
        reads_logits: whether it learns from the target's logits, not from accepted tokens alone.
    """

    name: ClassVar[str]
    reads_logits: ClassVar[bool]


@runtime_checkable
class PythonSource(SourceSettings, Protocol):
    """A source in Python: the library asks its sessions by callback, at most once a node."""

    def start(self, request: DraftRequest) -> SourceSession:
        """A session for one request."""
        ...


@runtime_checkable
class CompiledSource(SourceSettings, Protocol):
    """A source of the library, which Python only describes."""

    def native(self, request: DraftRequest) -> NativeSource:
        """The source for one request."""
        ...


Source = PythonSource | CompiledSource


def require_width(name: str, width: int, target: Model) -> None:
    """Raise ValueError unless a source reads hidden states as wide as the target's."""
    if target.hidden_size and width != target.hidden_size:
        raise ValueError(
            f"{name} reads hidden states of {width} numbers, and the model's have"
            f" {target.hidden_size}; make it for this model"
        )


def kinds_of(source: str, longest: int) -> list[Evidence]:
    """Make one kind of evidence for each number of tokens that agree, from 0 on."""
    return [Evidence(source, length) for length in range(longest + 1)]
