"""Lines that say where the time of a text's steps went, and whether drafts paid."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwood.stats import Stats

NAMES = {"target": "model", "draft": "drafting", "verify": "verifying", "rest": "the rest"}
"""Parts of a step in the order in which they are told."""


def step_lines(
    stats: "Stats", wall: float | None = None, plain_pass: float | None = None
) -> list[str]:
    """Say what a step took on average, and what came of its drafts; nothing without steps.

    Args:
        wall: seconds from the first token to the last; None leaves out what is between the phases.
        plain_pass: seconds of a pass over one token; None leaves out whether drafts paid.
    """
    if not stats.target_runs:
        return []
    parts = {phase: stats.seconds[phase] / stats.target_runs for phase in stats.phases}
    if wall is not None:
        between = max(wall - stats.decode_seconds, 0.0)
        parts["rest"] = between / stats.target_runs
    told = [_shares(parts)]
    if plain_pass and stats.drafted:
        told.append(_worth(stats, {name: spent / plain_pass for name, spent in parts.items()}))
    return told


def _shares(parts: dict[str, float]) -> str:
    whole = sum(parts.values()) or 1.0
    told = (
        f"{NAMES[name]} {1e3 * parts[name]:.2f} ms ({parts[name] / whole:.0%})"
        for name in NAMES
        if name in parts
    )
    return f"a step: {', '.join(told)}"


def _worth(stats: "Stats", parts: dict[str, float]) -> str:
    """Weigh tokens of a step against its price.

    Args:
        parts: of a step, in plain passes.
    """
    price, nodes = sum(parts.values()), 1 + stats.drafted / stats.target_runs
    gain = stats.block_efficiency / price
    others = [f"{NAMES[name]} {parts[name]:.2f}" for name in NAMES if name in {*parts} - {"target"}]
    told = ", ".join([f"over {nodes:.1f} nodes {parts['target']:.2f}", *others])
    return (
        f"drafts {'pay' if gain >= 1 else 'do not pay'} here: {stats.block_efficiency:.2f} tokens a"
        f" step, which costs {price:.2f} plain passes ({told}):"
        f" {gain:.2f} times plain decoding"
    )
