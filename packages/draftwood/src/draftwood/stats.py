"""Stats of a step, and their sums: the only definition of every number draftwood reports."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

from draftwood.tree import DraftTree

PHASES = ("draft", "target", "verify")
PARTS = {"target": "model", "draft": "drafting", "verify": "verifying", "rest": "the rest"}
"""Parts of a step in the order in which they are told."""
CURES = {
    "few": "few drafts are right; 'plain' loses nothing, a trained head or a prediction may gain",
    "draft": "drafting takes most of it; 'auto', 'suffix' or a smaller draft model take less",
    "target": "the nodes take most of it; a smaller tree takes less",
    "verify": "verifying takes most of it; temperature 0, or fewer options of sampling, take less",
}
"""Cures of drafts that cost more than they bring, by what is dear about them."""
FEW = 0.1  # draft tokens a step, below which no price would be low enough


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability under the target, before temperature and penalties.

    Attributes:
        token: that was emitted.
        logprob: its own, in nats.
        top: of the most probable tokens, in falling order.
        entropy: of the whole distribution, in bits.
    """

    token: int
    logprob: float
    top: dict[int, float] = field(default_factory=dict)
    entropy: float | None = None

    def as_json(self) -> dict[str, object]:
        return {"token": self.token, "logprob": self.logprob, "top": self.top}


@dataclass(frozen=True)
class DraftingTime:
    """Time of drafting, and the part of it that passes of the target hid, of an overlapped text.

    Attributes:
        seconds: of drafting, in whatever thread; of trees that came to nothing too.
        hidden: of these, how many fell into passes of the target, verdicts included.
        ahead: passes during which trees were drafted for outcomes that were not known yet.
        kept: of these, how many had one of these outcomes, so that the next tree was there.
    """

    seconds: float = 0.0
    hidden: float = 0.0
    ahead: int = 0
    kept: int = 0

    def __add__(self, other: "DraftingTime") -> "DraftingTime":
        return DraftingTime(
            self.seconds + other.seconds,
            self.hidden + other.hidden,
            self.ahead + other.ahead,
            self.kept + other.kept,
        )

    @property
    def hidden_share(self) -> float:
        """Seconds of drafting inside passes of the target over all seconds of drafting."""
        return self.hidden / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "seconds": round(self.seconds, 6),
            "hidden": round(self.hidden, 6),
            "hidden_share": round(self.hidden_share, 4),
            "ahead": self.ahead,
            "kept": self.kept,
        }


@dataclass(frozen=True)
class Step:
    """One forward pass of the target and its result.

    A tree whose root was run by itself first takes two.

    Attributes:
        tokens: emitted, in order: the accepted draft tokens and one token more; fewer where the
            text ended within them.
        drafted: draft tokens in the tree.
        accepted: draft tokens among ``tokens``.
        seconds: by phase: draft (proposing and learning), target (its pass), verify (probabilities,
            verdict, cache).
        tree: what was verified; None for the prompt's pass. Where its root was run by itself and
            decided alone, the target never ran the rest.
        path: accepted nodes of the tree.
        bound: greatest acceptance any rule could reach at the root, where the engine was asked to
            compute it.
        logprobs: of ``tokens``, where the request asked for them.
        runs: forward passes of the target.
        drafting: where the seconds of drafting went, where drafts and passes overlap.
        drafter_seconds: of the phase draft, in passes of a head or a draft model, where the library
            made the step; else 0.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    tree: DraftTree | None = None
    path: tuple[int, ...] = ()
    bound: float | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    runs: int = 1
    drafting: DraftingTime | None = None
    drafter_seconds: float = 0.0

    @property
    def is_prefill(self) -> bool:
        """True for the prompt's pass, which emits the first token and drafts nothing."""
        return self.tree is None

    def first(self, count: int) -> "Step":
        """The same step if the text ends after this many of its tokens."""
        kept = min(self.accepted, count)
        return replace(self, tokens=self.tokens[:count], accepted=kept, path=self.path[:kept])

    def without_probs(self) -> "Step":
        """The same step to be kept: its tree without the rows it was drawn from."""
        return (
            self
            if self.tree is None or not self.tree.is_drawn
            else replace(self, tree=self.tree.without_probs())
        )


@dataclass(frozen=True)
class SourceCount:
    """Draft tokens that one source proposed."""

    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: "SourceCount") -> "SourceCount":
        return SourceCount(self.drafted + other.drafted, self.accepted + other.accepted)


@dataclass
class Stats:
    """Sums over the steps of one or more texts.

    The prompt's pass emits a token without a choice of method, so block efficiency leaves it and
    its token out; seconds and ``tokens`` include it.

    Attributes:
        phases: of a step.
        tokens: emitted.
        target_runs: passes of the target after the prompt's.
        drafted: draft tokens in the trees that were verified.
        accepted: draft tokens kept.
        accepted_by_depth: entry d counts the passes that accepted at least d + 1 draft tokens.
        seconds: by phase; ``prefill`` is the prompt's pass.
        bounds: greatest possible acceptance at the root, summed over ``bounded`` passes.
        accepted_at_root: of these passes, how many accepted a draft token.
        sources: by source of draft tokens, where a drafter merges several: how many it had in
            trees, and how many of these were kept. A draft token that several sources proposed
            counts for each of them.
        drafting: where the seconds of drafting went, where drafts and passes overlap.
    """

    phases: ClassVar[tuple[str, ...]] = PHASES
    tokens: int = 0
    prefills: int = 0
    target_runs: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", *PHASES), 0.0)
    )
    bounds: float = 0.0
    bounded: int = 0
    accepted_at_root: int = 0
    sources: dict[str, SourceCount] = field(default_factory=dict)
    drafting: DraftingTime | None = None

    @classmethod
    def of(cls, steps: Iterable[Step]) -> "Stats":
        stats = cls()
        for step in steps:
            stats.add(step)
        return stats

    def add(self, step: Step) -> None:
        """Count one step."""
        self.tokens += len(step.tokens)
        if step.is_prefill:
            self.prefills += 1
            self.seconds["prefill"] += sum(step.seconds.values())
            return
        self.target_runs += step.runs
        self.drafted += step.drafted
        self.accepted += step.accepted
        for depth in range(step.accepted):
            if depth == len(self.accepted_by_depth):
                self.accepted_by_depth.append(0)
            self.accepted_by_depth[depth] += 1
        for phase, seconds in step.seconds.items():
            self.seconds[phase] += seconds
        if step.bound is not None:
            self.bounds += step.bound
            self.bounded += 1
            self.accepted_at_root += bool(step.accepted)
        self.drafting = _sum(self.drafting, step.drafting)
        self._count_sources(step)

    def _count_sources(self, step: Step) -> None:
        if step.tree is None or step.tree.sources is None:
            return
        for node, names in enumerate(step.tree.sources):
            for name in names:
                count = self.sources.get(name, SourceCount())
                self.sources[name] = count + SourceCount(1, int(node in step.path))

    def __add__(self, other: "Stats") -> "Stats":
        short, deep = sorted((self.accepted_by_depth, other.accepted_by_depth), key=len)
        return Stats(
            tokens=self.tokens + other.tokens,
            prefills=self.prefills + other.prefills,
            target_runs=self.target_runs + other.target_runs,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            accepted_by_depth=[n + (short[d] if d < len(short) else 0) for d, n in enumerate(deep)],
            seconds={phase: self.seconds[phase] + other.seconds[phase] for phase in self.seconds},
            bounds=self.bounds + other.bounds,
            bounded=self.bounded + other.bounded,
            accepted_at_root=self.accepted_at_root + other.accepted_at_root,
            sources={
                name: self.sources.get(name, SourceCount()) + other.sources.get(name, SourceCount())
                for name in {**self.sources, **other.sources}
            },
            drafting=_sum(self.drafting, other.drafting),
        )

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per pass of the target; plain decoding has exactly 1.

        Others call it mean acceptance length.
        """
        return (self.tokens - self.prefills) / self.target_runs if self.target_runs else 1.0

    @property
    def decode_seconds(self) -> float:
        """Seconds after the prompt's pass."""
        return sum(self.seconds[phase] for phase in PHASES)

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first per second after the prompt's pass: decoding speed."""
        return (self.tokens - self.prefills) / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def root_acceptance(self) -> float | None:
        """Share of passes that accepted a draft token, over those whose bound is known."""
        return self.accepted_at_root / self.bounded if self.bounded else None

    @property
    def root_acceptance_bound(self) -> float | None:
        """Mean of the greatest acceptance that any verifier could reach (alpha*).

        It is for drafts from the same distributions.
        """
        return self.bounds / self.bounded if self.bounded else None

    def costs(
        self,
        wall: float | None = None,
        curve: Callable[[int], float] | None = None,
        context: float = 0.0,
    ) -> "StepCosts":
        """Costs of an average step.

        Args:
            wall: seconds from the first token to the last; None leaves out what is between the
                phases.
            curve: seconds of a pass by its tokens; None leaves out whether drafts paid.
            context: tokens behind which passes ran, on average.
        """
        runs = self.target_runs
        if not runs:
            return StepCosts({}, self)
        parts = {phase: self.seconds[phase] / runs for phase in PHASES}
        if wall is not None:
            parts["rest"] = max(wall - self.decode_seconds, 0.0) / runs
        plain = None if curve is None else plain_pass(curve, context)
        return StepCosts(parts, self, plain)

    def as_json(self) -> dict[str, object]:
        """The numbers in the form that every command prints."""
        seconds = {phase: round(value, 6) for phase, value in self.seconds.items()}
        numbers: dict[str, object] = {
            "tokens": self.tokens,
            "target_runs": self.target_runs,
            "block_efficiency": round(self.block_efficiency, 4),
            "drafted": self.drafted,
            "accepted": self.accepted,
            "accepted_by_depth": self.accepted_by_depth,
            "seconds": {**seconds, "total": round(sum(self.seconds.values()), 6)},
            "tokens_per_second": round(self.tokens_per_second, 3),
        }
        if self.bounded:
            numbers["root_acceptance"] = self.root_acceptance
            numbers["root_acceptance_bound"] = self.root_acceptance_bound
        if self.sources:
            numbers["sources"] = {name: asdict(count) for name, count in self.sources.items()}
        if self.drafting is not None:
            numbers["drafting"] = self.drafting.as_json()
        return numbers


def _sum(one: DraftingTime | None, other: DraftingTime | None) -> DraftingTime | None:
    return one + other if one is not None and other is not None else one or other


def plain_pass(curve: Callable[[int], float], context: float) -> float:
    """Seconds of a pass over one token behind so many, by a curve that may know of contexts."""
    beyond = max(0.0, context - getattr(curve, "context", context))
    return curve(1) + beyond * float(getattr(curve, "per_context_token", 0.0))


@dataclass(frozen=True)
class StepCosts:
    """Seconds of an average step by part, and what its drafts brought.

    Attributes:
        parts: seconds, by the names of ``PARTS``; empty without steps.
        stats: that they are of.
        plain_pass: seconds of a pass over one token; None leaves out whether drafts paid.
    """

    parts: dict[str, float]
    stats: Stats
    plain_pass: float | None = None

    @property
    def lines(self) -> list[str]:
        """The costs, and what came of the drafts, in words."""
        worth = self.worth
        return ([self._shares()] if self.parts else []) + ([worth] if worth else [])

    def _shares(self) -> str:
        whole = sum(self.parts.values()) or 1.0
        told = (
            f"{PARTS[name]} {1e3 * self.parts[name]:.2f} ms ({self.parts[name] / whole:.0%})"
            for name in PARTS
            if name in self.parts
        )
        return f"a step: {', '.join(told)}"

    @property
    def worth(self) -> str | None:
        """Weigh tokens of a step against its price; None where nothing was drafted.

        What is between the phases, a plain step has too.
        """
        stats = self.stats
        if not (self.plain_pass and self.parts and stats.drafted):
            return None
        plain = self.plain_pass + self.parts.get("rest", 0.0)
        parts = {name: spent / plain for name, spent in self.parts.items()}
        price, nodes = sum(parts.values()), 1 + stats.drafted / stats.target_runs
        gain = stats.block_efficiency / price
        others = [
            f"{PARTS[name]} {parts[name]:.2f}" for name in PARTS if name in {*parts} - {"target"}
        ]
        told = ", ".join([f"over {nodes:.1f} nodes {parts['target']:.2f}", *others])
        verdict = (
            f"drafts {'pay' if gain >= 1 else 'do not pay'} here: {stats.block_efficiency:.2f}"
            f" tokens a step, which costs {price:.2f} plain steps ({told}):"
            f" {gain:.2f} times plain decoding"
        )
        return verdict if gain >= 1 else f"{verdict}; {self._cure(parts)}"

    def _cure(self, parts: dict[str, float]) -> str:
        """Name what makes a step too dear, and what would mend it.

        Args:
            parts: of a step, in plain steps.
        """
        if self.stats.accepted < FEW * self.stats.target_runs:
            return CURES["few"]
        beyond = {**parts, "target": parts["target"] + parts.get("rest", 0.0) - 1}
        return CURES[max(CURES.keys() & beyond, key=lambda name: beyond[name])]
