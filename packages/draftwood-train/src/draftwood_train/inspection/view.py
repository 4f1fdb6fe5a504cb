"""Pictures and tables of an inspection, for a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftwood_train.inspection.acceptance import Acceptance
from draftwood_train.inspection.surplus import Interval, Surplus

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from draftwood_train.inspection.report import Inspection

WIDTH = 40
"""Columns of the longest bar."""
BARS = (
    ("next-token distribution", "cyan", lambda each: each.by_next.mean),
    ("and inner states", "green", lambda each: each.beyond_next.mean),
    ("untrained network", "red", lambda each: each.by_untrained.mean),
)


def bits_table(bits: Sequence[Surplus]) -> "Table":
    """Bits per token beyond the newest one, with 95 % intervals."""
    from rich.table import Table

    shown = Table(title="bits per token that probes find, beyond the newest token")
    for column in ("ahead", "left by newest", "by states", "by next-token distribution"):
        shown.add_column(column)
    for column in ("by inner states beyond both", "untrained: control"):
        shown.add_column(column)
    for each in bits:
        told = (each.by_states, each.by_next, each.beyond_next, each.by_untrained)
        shown.add_row(str(each.ahead), f"{each.newest:.2f}", *map(_interval, told))
    return shown


def _interval(value: Interval) -> str:
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"


def bars(bits: Sequence[Surplus], encoding: str | None) -> "Text":
    """The same as bars, one under the other.

    Args:
        encoding: of the terminal; one without blocks gets signs of ASCII.
    """
    from rich.text import Text

    block = "█" if (encoding or "").lower().startswith("utf") else "#"
    most = max([value(each) for each in bits for _, _, value in BARS] + [1e-9])
    text = Text()
    for each in bits:
        for place, (name, colour, value) in enumerate(BARS):
            head = f"{each.ahead} ahead" if place == 0 else ""
            long = round(WIDTH * max(value(each), 0) / most)
            text.append(f"{head:>8} ").append(f"{block * long:<{WIDTH}}", colour)
            text.append(f" {value(each):+.3f} {name}\n", "dim")
    return text


def drafters_table(found: "Inspection") -> "Table":
    """Acceptance of drafters that are foretold, and of the one that was measured."""
    from rich.table import Table

    shown = Table(title="chains of 3 drafts: share right, overlap at temperature 1")
    for column in ("drafter", "", "depth 1", "depth 2", "depth 3", "tokens per pass"):
        shown.add_column(column)
    for each in found.foretold:
        shown.add_row(each.drafter, "foretold", *_depths(each), f"{each.tokens_per_pass:.2f}")
    if (own := found.measured) is not None:
        shown.add_row(own.drafter, "measured", *_depths(own), f"{own.tokens_per_pass:.2f}")
    return shown


def _depths(each: Acceptance) -> list[str]:
    shares = ["-" if share is None else f"{share:.2f}" for share in each.depths]
    if each.overlap is None:
        return shares
    return [f"{a}, {b:.2f}" for a, b in zip(shares, each.overlap, strict=True)]
