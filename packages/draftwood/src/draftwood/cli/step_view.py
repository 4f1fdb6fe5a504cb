"""Where the time of a text's steps went, whether drafts paid, and what would make them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwood.stats import Stats

NAMES = {"target": "model", "draft": "drafting", "verify": "verifying", "rest": "the rest"}
"""Parts of a step in the order in which they are told."""
CURES = {
    "few": "few drafts are right; 'plain' loses nothing, a trained head or a prediction may gain",
    "draft": "drafting takes most of it; 'auto', 'suffix' or a smaller draft model take less",
    "target": "the nodes take most of it; a smaller tree does",
    "verify": "verifying takes most of it; temperature 0, or fewer options of sampling, take less",
    "rest": "the rest takes most of it: other texts or programs, or a client that reads slowly",
}
"""What would make drafts pay, by what makes them cost more than they bring."""
FEW = 0.1  # draft tokens a step, below which no price would be low enough


@dataclass(frozen=True)
class StepCosts:
    """Seconds of an average step by part, and what its drafts brought.

    Attributes:
        parts: seconds, by the names of ``NAMES``; empty without steps.
        stats: that they are of.
        plain_pass: seconds of a pass over one token; None leaves out whether drafts paid.
    """

    parts: dict[str, float]
    stats: "Stats"
    plain_pass: float | None = None

    @classmethod
    def of(
        cls, stats: "Stats", wall: float | None = None, plain_pass: float | None = None
    ) -> "StepCosts":
        """Costs of a step.

        Args:
            wall: seconds from the first token to the last; None leaves out what is between the
                phases.
            plain_pass: seconds of a pass over one token.
        """
        runs = stats.target_runs
        if not runs:
            return cls({}, stats)
        parts = {phase: stats.seconds[phase] / runs for phase in stats.phases}
        if wall is not None:
            parts["rest"] = max(wall - stats.decode_seconds, 0.0) / runs
        return cls(parts, stats, plain_pass)

    @property
    def lines(self) -> list[str]:
        """The costs, and what came of the drafts, in words."""
        worth = self.worth
        return ([self._shares()] if self.parts else []) + ([worth] if worth else [])

    def _shares(self) -> str:
        whole = sum(self.parts.values()) or 1.0
        told = (
            f"{NAMES[name]} {1e3 * self.parts[name]:.2f} ms ({self.parts[name] / whole:.0%})"
            for name in NAMES
            if name in self.parts
        )
        return f"a step: {', '.join(told)}"

    @property
    def worth(self) -> str | None:
        """Weigh tokens of a step against its price; None where nothing was drafted."""
        stats, plain = self.stats, self.plain_pass
        if not (plain and self.parts and stats.drafted):
            return None
        parts = {name: spent / plain for name, spent in self.parts.items()}
        price, nodes = sum(parts.values()), 1 + stats.drafted / stats.target_runs
        gain = stats.block_efficiency / price
        others = [
            f"{NAMES[name]} {parts[name]:.2f}" for name in NAMES if name in {*parts} - {"target"}
        ]
        told = ", ".join([f"over {nodes:.1f} nodes {parts['target']:.2f}", *others])
        verdict = (
            f"drafts {'pay' if gain >= 1 else 'do not pay'} here: {stats.block_efficiency:.2f}"
            f" tokens a step, which costs {price:.2f} plain passes ({told}):"
            f" {gain:.2f} times plain decoding"
        )
        return verdict if gain >= 1 else f"{verdict}; {self._cure(parts)}"

    def _cure(self, parts: dict[str, float]) -> str:
        """Name what makes a step too dear, and what would mend it.

        Args:
            parts: of a step, in plain passes.
        """
        if self.stats.accepted < FEW * self.stats.target_runs:
            return CURES["few"]
        beyond = {**parts, "target": parts["target"] - 1}
        return CURES[max(beyond, key=lambda name: beyond[name])]
