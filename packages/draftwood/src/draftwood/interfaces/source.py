"""What a merged tree needs of a source: it learns from every forward pass and names candidates."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.interfaces.drafter import DraftRequest, VerifiedTree
from draftwood.native.rows import topk_probs
from draftwood.sampling import Sampling

RANKS = 8
"""Successors that are read from each row of the target's logits."""


class Evidence(NamedTuple):
    """What sort of evidence candidates rest on; each kind has a log-weight that is learnt.

    Attributes:
        source: name of the source, as reports call it.
        strength: how much evidence there is, for instance how many tokens of context agree.
    """

    source: str
    strength: int


Candidates = tuple[Evidence, dict[int, float]]
"""A kind and the tokens it holds likely, with probabilities that sum to 1 at most."""


Likeliest = tuple[Int[Tensor, "rows ranks"], Float[Tensor, "rows ranks"]]
"""Tokens, likeliest first, and their probabilities."""


def likeliest(logits: Float[Tensor, "rows vocab"], sampling: Sampling) -> Likeliest:
    """The few likeliest next tokens of each row.

    Where a request cuts off unlikely tokens these are left out of the sum, and with them all others
    but the few: sorting dozens of whole rows costs more than all other drafting, and what is learnt
    online makes up for it.
    """
    tokens, probs = topk_probs(logits, min(RANKS, logits.shape[-1]), sampling.temperature)
    if sampling.cuts:
        probs = sampling.probs(logits.gather(-1, tokens))
    return tokens, probs


@dataclass(frozen=True, eq=False)
class TargetUpdate:
    """What a forward pass of the target said, in the form in which sources read it.

    Attributes:
        accepted: the tree, its accepted path and, where a source reads them, the target's logits.
        sampling: how the few likeliest logits of a row become probabilities.
        quiet: whether only the accepted tokens are to be taken in, since nothing is drafted at
            present.
    """

    accepted: VerifiedTree
    sampling: Sampling
    quiet: bool = False

    @cached_property
    def likeliest(self) -> "Likeliest":
        """For each node the target's likeliest next tokens; see the function."""
        return likeliest(self.accepted.logits, self.sampling)

    @cached_property
    def rows(self) -> list[dict[int, float]]:
        """The same by token."""
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

        The first one is the prompt, as a chain that is all kept.
        """
        ...

    def begin(self, root: int) -> Any:
        """The state after the text so far and the root."""
        ...

    def advance(self, state: Any, token: int) -> Any:
        """The state one token later."""
        ...

    def candidates(self, state: Any) -> Sequence[Candidates]:
        """What may come next, by kind of evidence; none where nothing is known."""
        ...


@runtime_checkable
class SlowSession(SourceSession, Protocol):
    """A session whose answers take time that may not pay.

    It is asked at the root where that pays by what it was worth before, and below a node at which
    it was asked, or below any.
    """

    @property
    def anywhere(self) -> bool:
        """Whether it may be asked below nodes at which it was not."""
        ...

    @property
    def seconds(self) -> "ctypes.Array[ctypes.c_double]":
        """What asking takes at the root and at a deeper node; the same memory at all times."""
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
    """How the library makes a source for one request.

    Attributes:
        kind: of a header in ``native/sources/``.
        settings: all the numbers of the source, in the order of that header.
        evidence: the kinds of evidence that it states, in the order in which C++ counts them.
        shared: a ``native.drafting.SharedState`` of several requests, or anything that has to stay
            in memory with the source.
        hidden: layers whose hidden states it reads, of every forward pass.
        width: numbers of such a state.
    """

    kind: str
    settings: ctypes.Structure
    evidence: tuple[Evidence, ...]
    shared: object = None
    hidden: tuple[int, ...] = ()
    width: int | None = None


@runtime_checkable
class Source(Protocol):
    """Settings of a source.

    Attributes:
        name: as reports call it.
        reads_logits: whether it learns from the target's logits, not from accepted tokens alone.
    """

    name: ClassVar[str]
    reads_logits: ClassVar[bool]

    def start(self, request: DraftRequest) -> SourceSession: ...


@runtime_checkable
class CompiledSession(SlowSession, Protocol):
    """A slow session that the library can take over before it has learnt anything."""

    def native(self) -> NativeSource: ...


class CompiledSource(Source, Protocol):
    """A source that the library may have in C++ too.

    It gives the same candidates there; see ``native_of``.
    """

    def native(self) -> NativeSource | None:
        """The source in C++ for one request; None where these settings are left to Python."""
        ...


@runtime_checkable
class Prior(Source, Protocol):
    """A source that is a table of every token's likeliest successors, measured once per model."""

    @property
    def tokens(self) -> Int[Tensor, "known ranks"]:
        """Successors of each token, likeliest first; -1 where there is none."""
        ...

    @property
    def probs(self) -> Float[Tensor, "known ranks"]:
        """Their probabilities."""
        ...


class ExitMaps(Protocol):
    """What a model would say after some of its layers."""

    @property
    def maps(self) -> Mapping[int, Float[Tensor, "dim dim"]]:
        """By layer."""
        ...

    def normed(self, layer: int, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """What the output head reads after hidden states of a layer that has a map."""
        ...
