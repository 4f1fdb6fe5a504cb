"""One tree of the candidates of several sources, grown in C++.

Python's objects lie all over memory, and a forward pass of the target has just pushed them out of
the caches; in C++ the same draft tokens take a third of the time.
"""

from collections.abc import Mapping, Sequence
from ctypes import Array, c_double, c_int32
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from draftwood.costs.budget import Budget
from draftwood.models.verified import DraftRequest, VerifiedTree
from draftwood.native import library
from draftwood.native.drafting import MAX_NAMES, CandidateBuffer, CMergingSettings, Costs, Drafting
from draftwood.native.step import NativeDraft
from draftwood.sources.acceptance import (
    BUCKET_OF,
    BUCKETS,
    LEAST_NOISE,
    Estimator,
    Line,
    before_evidence,
)
from draftwood.sources.source import (
    RANKS,
    Evidence,
    NativeSource,
    PythonSource,
    SlowSession,
    Source,
    SourceSession,
    TargetUpdate,
    require_width,
)
from draftwood.tree import UNBOUNDED

# a node is expanded once a child of this acceptance would be the best candidate left
LIKELIEST_CHILD = 0.95


class Grown(NamedTuple):
    """A tree in falling order of its nodes' chances of being accepted, the root first.

    A node's chance includes that all its ancestors are accepted.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float]


class Merger:
    """Candidates of several sources, grown into one tree best first.

    The library grows it (``native/merging.h``). A source in Python is asked by callback, and alone:
    the others stay in C++.

    Args:
        sources: what proposes.
        estimator: how candidates become estimates.
        request: whose text it is; texts that are drawn are drafted with the noise of the draw in
            view.

    Attributes:
        in_python: whether Python searches any of the sources, which takes longer.
        hidden: layers whose hidden states the sources read of every forward pass, those of a source
            that rests among them.
    """

    def __init__(
        self, sources: Sequence[Source], estimator: Estimator, request: DraftRequest
    ) -> None:
        self.sampling = request.row_sampling
        self.rng = None if request.sampler.greedy else request.rng
        self.target = request.target.model
        members = [_member(source, request) for source in sources]
        named = list(zip(sources, members, strict=True))
        slow = [source.name for source, each in named if _is_slow(each)]
        self.drafting = Drafting(_settings(estimator, slow))
        self.evidence = _EvidenceNumbers(self.drafting, estimator.log_weight)
        self._known_names: dict[int, tuple[str, ...]] = {}  # by bits
        self.foreign: list[SourceSession] = []
        self.slow: list[SlowSession] = []  # of these
        self.hidden: tuple[int, ...] = ()
        self.always: tuple[int, ...] = ()  # those without the ones of a source that may rest
        self.in_python = self.reads_rows = False
        for source, each in named:
            self._add(source, each)
        self.costs: tuple[Budget, Costs] | None = None  # of the last tree

    def _add(self, source: Source, member: NativeSource | SourceSession) -> None:
        if not isinstance(member, NativeSource):
            self._add_foreign(member)
            return
        if member.width is not None:
            require_width(source.name, member.width, self.target)
        self._read(member.hidden, rests=member.rests)
        numbers = [self.evidence[kind] for kind in member.evidence]
        self.drafting.add_source(member.kind, member.settings, member.shared, numbers)
        self.reads_rows |= source.reads_logits

    def _add_foreign(self, session: SourceSession) -> None:
        self.foreign.append(session)
        self.in_python = True
        ask = ForeignSession(session, self.evidence).ask
        if not isinstance(session, SlowSession):
            self.drafting.add_foreign(ask)
            return
        self.slow.append(session)
        self._read(session.hidden)
        self.drafting.add_foreign(ask, session.seconds, session.anywhere)

    def _read(self, hidden: Sequence[int], rests: bool = False) -> None:
        self.hidden = tuple(dict.fromkeys([*self.hidden, *hidden]))
        if not rests:
            self.always = tuple(dict.fromkeys([*self.always, *hidden]))

    @property
    def reads(self) -> tuple[int, ...]:
        """Layers whose hidden states the next forward pass is to give."""
        if self.always == self.hidden or self.drafting.is_open:
            return self.hidden
        return self.always

    def grow(
        self, root: int, budget: Budget, max_draft_len: int = UNBOUNDED, others: float = 0.0
    ) -> Grown:
        """Draft tokens below ``root``, the newest token, at most ``max_draft_len`` in a row.

        The tree grows until no further token could pay by this budget, where other texts emit so
        many tokens in the same pass.
        """
        draw = None if self.rng is None else self.rng.next_draw
        return Grown(*self.drafting.grow(root, self._costs_of(budget), draw, max_draft_len, others))

    def native(
        self,
        budget: Budget | None,
        others: float = 0.0,
        reads: bool = True,
        in_a_row: int = 1,
    ) -> NativeDraft:
        """Hand over what a whole step in the library drafts with.

        Args:
            budget: None rests, and learns the path alone.
            others: tokens that other texts are expected to emit in the same pass.
            reads: whether sources that may rest are told hidden states.
            in_a_row: most steps for which all of this holds.
        """
        hidden = self.reads if reads else self.always
        if budget is None:
            return NativeDraft(drafting=self.drafting, hidden=hidden, in_a_row=in_a_row)
        ranks = RANKS if self.reads_rows else 0
        costs, temperature = self._costs_of(budget), self.sampling.temperature
        given = (costs, self.drafting, ranks, temperature, hidden, others)
        return NativeDraft(*given, in_a_row=in_a_row)

    def _costs_of(self, budget: Budget) -> Costs:
        if self.costs is None or self.costs[0] is not budget:
            self.costs = (budget, Costs(budget.costs, budget.slopes))
        return self.costs[1]

    def proposers(self, size: int) -> tuple[tuple[str, ...], ...]:
        """For the first ``size`` nodes of the last tree the sources that proposed them, by name."""
        return self.names_of(self.drafting.proposers(size))

    def names_of(self, proposers: Sequence[int]) -> tuple[tuple[str, ...], ...]:
        """The sources' names that these bits stand for."""
        return tuple([self._names(bits) for bits in proposers])

    def _names(self, bits: int) -> tuple[str, ...]:
        if (known := self._known_names.get(bits)) is None:
            names = enumerate(self.evidence.names)
            known = tuple(name for number, name in names if bits >> number & 1)
            self._known_names[bits] = known
        return known

    def spent(self) -> float:
        """Seconds that slow sources took for the last tree."""
        return self.drafting.spent() + sum(session.spent() for session in self.slow)

    def learn(self, accepted: VerifiedTree, quiet: bool) -> None:
        """Take in what became of the tree.

        Where ``quiet`` only its accepted tokens count, since nothing is drafted then.

        Raises:
            ValueError: where logits or hidden states are missing that a source reads.
        """
        update = TargetUpdate(accepted, self.sampling, quiet)
        tree, rows = accepted.tree, None
        if self.reads_rows and not quiet:
            best, probs = update.likeliest
            if len(best) != len(tree):
                raise ValueError(
                    f"there must be logits of every node, got {len(best)} rows for {len(tree)}"
                    " nodes"
                )
            rows = (best, np.ascontiguousarray(probs, np.float32))
        states = {} if accepted.output is None else accepted.output.hidden
        missing = [layer for layer in self.always if layer not in states]
        if missing and accepted.output is not None:
            raise ValueError(f"there must be hidden states of the layers {missing}")
        told = {layer: states.get(layer) for layer in self.hidden} if states else {}
        self.drafting.learn(tree.tokens, tree.parents, accepted.path, rows, told)
        for session in self.foreign:
            session.learn(update)


class _EvidenceNumbers(dict[Evidence, int]):
    """The number of each kind of evidence in C++, which learns of a kind when it is first stated.

    Attributes:
        names: of the sources, as the bits of ``Drafting.proposers`` count them.
    """

    def __init__(self, drafting: Drafting, log_weight: Mapping[Evidence, float]) -> None:
        super().__init__()
        self.add, self.log_weight = drafting.adder(), log_weight
        self.names: list[str] = []

    def __missing__(self, kind: Evidence) -> int:
        if kind.source not in self.names:
            if len(self.names) == MAX_NAMES:
                raise ValueError(
                    f"evidence must come under at most {MAX_NAMES} names of sources, and"
                    f" {kind.source!r} is one more"
                )
            self.names.append(kind.source)
        name = self.names.index(kind.source)
        self[kind] = number = self.add(self.log_weight.get(kind, 0.0), name)
        return number


class ForeignSession:
    """Answers what ``native/foreign.h`` asks of a source that only Python has.

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


def _member(source: Source, request: DraftRequest) -> NativeSource | SourceSession:
    """A source for one request; one with ``start`` is Python's, whatever its class inherits."""
    return source.start(request) if isinstance(source, PythonSource) else source.native(request)


def _is_slow(member: NativeSource | SourceSession) -> bool:
    return member.is_slow if isinstance(member, NativeSource) else isinstance(member, SlowSession)


def _settings(estimator: Estimator, slow: Sequence[str]) -> CMergingSettings:
    """Settings where there are these slow sources."""
    asking, priors = estimator.asking, [estimator.slow_prior(name) for name in slow]
    return CMergingSettings(
        before_evidence=_before_evidence(tuple(estimator.lines(slow))),
        bucket_of=_bucket_of(),
        asking_gain=library.doubles([prior.gain for prior in priors]),
        asking_reach=library.doubles([each for prior in priors for each in prior.reach]),
        buckets=BUCKETS,
        steps=len(BUCKET_OF),
        rate=estimator.rate,
        strength=estimator.strength,
        decay=estimator.decay,
        floor=estimator.floor,
        least_noise=LEAST_NOISE,
        sharpness=estimator.sharpness,
        likeliest_child=LIKELIEST_CHILD,
        asking_strength=asking.strength,
        asking_decay=asking.decay,
        asking_trial=asking.trial,
        slow=len(slow),
    )


@lru_cache(maxsize=16)
def _before_evidence(lines: tuple[Line, ...]) -> Array[c_double]:
    return library.doubles([value for line in lines for value in before_evidence(line)])


@cache
def _bucket_of() -> Array[c_int32]:
    return (c_int32 * len(BUCKET_OF))(*BUCKET_OF)
