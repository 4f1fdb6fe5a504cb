"""Choose the number of draft tokens that is worth its time on this machine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # a plan for another machine does without PyTorch
    from draftwood.costs.curve import Curve
    from draftwood.costs.following import Following
    from draftwood.sampling import PassTime

Seconds = Callable[[int], float]
"""Seconds of a forward pass over so many nodes, the root included; one node is plain decoding."""


SHARED_MARGIN = 1.5
"""Factor on a draft token's cost where other texts share the pass."""

_CONTEXT = 128  # tokens before the tree when a curve is measured
_ROUNDING = 1e-9  # share by which rounding may let a curve fall


def default_cost(nodes: int) -> float:
    """Cost assumed of a machine without a measured curve.

    Each further node costs a twentieth of a plain pass: more than on any machine measured so far,
    so a tree that pays by this cost pays by a measured one.
    """
    return 0.02 * (1.0 + 0.05 * (nodes - 1))


def require_curve(curve: Seconds) -> None:
    """Refuse what gives no times, before anything asks for them.

    Raises:
        TypeError: for what cannot be called, or gives what is no number.
        ValueError: where it gives what is no finite time above 0, or falls.
    """
    if not callable(curve):
        raise TypeError(
            "curve must be a draftwood.costs.curve.Curve or a function from nodes to seconds, got"
            f" {curve!r}"
        )
    found = checked_seconds(curve, Budget.max_draft_tokens + 1)
    for nodes, (before, now) in enumerate(pairwise(found), 2):
        if now < before * (1.0 - _ROUNDING):
            raise ValueError(
                f"curve must never fall, got {now} seconds for {nodes} nodes and {before} for"
                f" {nodes - 1}; Curve.fit of draftwood.costs.curve smooths measured times"
            )


def checked_seconds(curve: Seconds, most: int) -> list[float]:
    """Seconds of passes over 1 to ``most`` nodes.

    Trees are grown in C++, which could not survive a time that is no number. A curve that learns
    may fall while it changes.

    Raises:
        TypeError: where a curve gives what is no number.
        ValueError: where it gives what is no finite time above 0.
    """
    found: list[float] = []
    for nodes in range(1, most + 1):
        given = curve(nodes)
        value = given if type(given) is float else _number(given, nodes)
        if not 0.0 < value < math.inf:
            raise ValueError(
                "curve must give finite seconds above 0 for every number of nodes, got"
                f" {value} for {nodes}"
            )
        found.append(value)
    return found


def _number(given: object, nodes: int) -> float:
    try:
        return math.fsum((given,))  # type: ignore[arg-type]  # float() would read texts, too
    except (TypeError, OverflowError):
        raise TypeError(
            f"curve must give a number of seconds, got {given!r:.80} for {nodes} nodes"
        ) from None


@dataclass(frozen=True)
class Budget:
    """Chooses the size of a tree that emits most tokens per second.

    A forward pass over n nodes takes ``seconds(n)`` and emits one token more than it accepts, so a
    tree of draft tokens whose paths are accepted with the probabilities e1 >= e2 >= ... is worth (1
    + e1 + ... + en) / seconds(1 + n) tokens a second. A draft token that raises this enters; where
    none does, the tree stays empty.

    Args:
        seconds: cost of a forward pass by nodes, the root included: a measured curve, or any
            function. ``now`` reads a ``Following`` one again.
        per_draft_token: seconds that drafting one token and learning from it take.
        per_step: seconds that drafting takes however few the draft tokens are; where they gain
            less, no drafting pays.
        max_draft_tokens: most draft tokens, whatever the curve says.
        per_context_token: seconds that each node takes longer for every token of context beyond the
            128 of the curve.

    Raises:
        TypeError: for a curve that gives what is no number.
        ValueError: for a cost or size that is negative or no number, and for a curve that is not
            finite and positive.
    """

    seconds: Seconds = default_cost
    per_draft_token: float = 3e-5
    per_step: float = 1e-4
    max_draft_tokens: int = 32
    per_context_token: float = 0.0

    @classmethod
    def of(cls, seconds: Seconds | None) -> "Budget":
        """Make a budget from a measured curve or any function from nodes to seconds; None takes
        ``default_cost``.
        """
        if seconds is None:
            return cls()
        return cls(seconds, per_context_token=getattr(seconds, "per_context_token", 0.0))

    def __post_init__(self) -> None:
        names = ("max_draft_tokens", "per_draft_token", "per_step", "per_context_token")
        for name in names:
            if not 0 <= (given := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {given}")
        _ = self.costs  # asks the curve

    def saw(self, took: "PassTime | None") -> None:
        """Let a curve that follows passes learn of one."""
        if self._following is not None:
            self._following.saw(took)

    def now(self) -> "Budget":
        """This budget by what passes take now, where its curve follows them."""
        if self._following is None:
            return self
        curve = self._following.curve
        if self._now.get("curve") is not curve:
            self._now.update(curve=curve, budget=self._by(curve))
        return self._now["budget"]

    def trial(self) -> "Budget | None":
        """Budget of a trial step, which tries sizes whose passes may be faster than known.

        None for all other steps. Call it once before each step.
        """
        curve = None if self._following is None else self._following.trial()
        return None if curve is None else self._by(curve)

    def _by(self, curve: "Curve") -> "Budget":
        return replace(self, seconds=curve, per_context_token=curve.per_context_token)

    def with_context(self, context: int) -> "Budget":
        """Budget of passes after ``context`` tokens, where attention costs each node more.

        ``context`` is rounded to a multiple of 128.
        """
        steps = round(context / _CONTEXT) - 1
        if steps < 1 or not self.per_context_token:
            return self
        if steps not in self._with_context:
            more = self.per_context_token * steps * _CONTEXT
            self._with_context[steps] = replace(
                self,
                seconds=lambda nodes: self.seconds(nodes) + nodes * more,
                per_context_token=0.0,
            )
        return self._with_context[steps]

    def beside(self, rows: int) -> "Budget":
        """Budget of passes that also run ``rows`` rows of other texts.

        A draft token's cost counts 1.5 times: estimates of chosen tokens are too high on average,
        and other texts wait for the drafting. Above 16, ``rows`` is rounded to a multiple of 4.
        """
        if not rows:
            return self
        rows = rows if rows <= 16 else 4 * round(rows / 4)
        if rows not in self._beside:
            alone = self.seconds(rows + 1)

            def seconds(nodes: int) -> float:
                return alone + SHARED_MARGIN * (self.seconds(rows + nodes) - alone)

            self._beside[rows] = replace(self, seconds=seconds)
        return self._beside[rows]

    @cached_property
    def _following(self) -> "Following | None":
        return cast("Following", self.seconds) if hasattr(self.seconds, "trial") else None

    @cached_property
    def _now(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _with_context(self) -> dict[int, "Budget"]:
        return {}

    @cached_property
    def _beside(self) -> dict[int, "Budget"]:
        return {}

    @cached_property
    def costs(self) -> list[float]:
        """Seconds of a step with 0, 1, 2, ... draft tokens."""
        times = checked_seconds(self.seconds, self.max_draft_tokens + 1)
        return [took + self.per_draft_token * count for count, took in enumerate(times)]

    @cached_property
    def slopes(self) -> list[float]:
        """Least average cost of further draft tokens, for each number of draft tokens.

        It is the least over all numbers that may follow. Draft tokens come in falling order of
        their estimates e; m more of them add at most m * e tokens and cost at least m * slope
        seconds. So below the best rate so far, in tokens per second, times this slope no further
        draft token can raise that rate.
        """
        costs, found = self.costs, []
        for here in range(self.max_draft_tokens):
            found.append(
                min(
                    (costs[more] - costs[here]) / (more - here)
                    for more in range(here + 1, self.max_draft_tokens + 1)
                )
            )
        return [*found, float("inf")]

    def best(self, estimates: Sequence[float], others: float = 0.0) -> int:
        """Choose how many of these draft tokens to run.

        Args:
            estimates: probability that each is accepted, all its ancestors included; falling.
            others: tokens that other texts are expected to emit in the same pass.
        """
        size, tokens = 0, 1.0 + others
        best = tokens / self.costs[0]
        for count, estimate in enumerate(estimates[: self.max_draft_tokens], start=1):
            tokens += estimate
            if tokens / self.costs[count] > best:
                size, best = count, tokens / self.costs[count]
        return size

    def gain(self, estimates: Sequence[float], more: float = 0.0, others: float = 0.0) -> float:
        """Tokens a second with all of these draft tokens over plain decoding's.

        Plain decoding neither runs nor drafts any. 1 breaks even.

        Args:
            more: seconds that drafting them took beyond ``per_step``.
            others: tokens that other texts are expected to emit in the same pass.
        """
        plain = 1.0 + others
        rate = (plain + sum(estimates)) / (self.costs[len(estimates)] + self.per_step + more)
        return rate * self.costs[0] / plain
