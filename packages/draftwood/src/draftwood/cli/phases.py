"""`draftwood tune --phases`: the time of forward passes by phase."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from draftwood.cli.terminal import output, progress, ruled_table

if TYPE_CHECKING:
    import numpy as np

    from draftwood.text.language_model import LanguageModel

SIZES = "1,8"


def sizes_of(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[int] | None:
    """Numbers of nodes from a comma-separated list."""
    if value is None:
        return None
    try:
        sizes = sorted({int(part) for part in value.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise click.BadParameter(
            f"takes numbers of nodes from 1 on, for instance {SIZES}, got {value!r}",
            context,
            parameter,
        )
    return sizes


def measure(lm: "LanguageModel", sizes: Sequence[int], seconds: float) -> dict[int, "np.ndarray"]:
    """Seconds [threads parts] of a median pass of each size."""
    from draftwood.costs.phases import ROUNDS, measure_phases

    with progress() as bar:
        task = bar.add_task("forward passes", total=ROUNDS)
        return measure_phases(lm.model, sizes, seconds=seconds, advance=lambda: bar.advance(task))


def as_json(model: str, found: dict[int, "np.ndarray"]) -> dict[str, object]:
    from draftwood.costs.phases import PARTS

    return {
        "model": model,
        "parts": list(PARTS),
        "seconds_by_nodes": {size: seconds.tolist() for size, seconds in found.items()},
    }


def show(model: str, found: dict[int, "np.ndarray"]) -> None:
    """A table with a line for each thread of each size."""
    from draftwood.costs.phases import PARTS

    console = output()
    console.print("[bold]Where the time of a forward pass goes[/] (ms): ", end="")
    console.print(model, markup=False, soft_wrap=True)
    table = ruled_table(numbers=("nodes", "thread", *PARTS, "in all"))
    for size, seconds in found.items():
        for thread, parts in enumerate(seconds.tolist()):
            numbers = [f"{1e3 * part:.3f}" for part in (*parts, sum(parts))]
            table.add_row("" if thread else str(size), str(thread), *numbers)
    console.print(table)
