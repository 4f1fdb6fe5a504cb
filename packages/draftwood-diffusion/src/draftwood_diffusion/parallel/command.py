"""`draftwood bench parallel`: what each rule of unmasking costs, in bits."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from draftwood_diffusion.parallel.run import Cell

METHODS = (
    "one-by-one;left-to-right;random;freedave;top-k,k=2;top-k,k=4;threshold;threshold,tau=0.6;factor;"
    "local-leap;ccd;ccd-agreement;entropy;longest-prefix;threshold+adablock"
)


@click.command(short_help="Prices in bits of rules that write several tokens a pass.")
@click.option(
    "--tasks", default="all", show_default=True, metavar="A,B,C", help="Names of tasks, or all."
)
@click.option(
    "--methods",
    default=METHODS,
    metavar="A;B;C",
    help="As 'draftwood generate' takes them, with a semicolon between.",
)
@click.option(
    "--items", type=click.IntRange(2, 9), default=5, show_default=True, help="Items of a list."
)
@click.option(
    "--exercises", type=click.IntRange(1), default=3, show_default=True, help="Of each task."
)
@click.option(
    "--block-length",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="Tokens that are filled together.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first exercise.")
@options.as_json
def parallel(
    tasks: str,
    methods: str,
    items: int,
    exercises: int,
    block_length: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure what rules of unmasking cost where every right answer is known.

    A model with exact distributions fills the masks at temperature 1. bits is the divergence of the
    task's answers from those that the rule writes: 0 where it writes as one by one does. Each is
    computed over all answers, not drawn. One task is told in full; of several, the mean and the
    worst.

    \b
    Examples:
      draftwood bench parallel
      draftwood bench parallel --tasks shuffle --methods "top-k,k=2;threshold,tau=0.5" --json
    """
    from draftwood_diffusion.lists.tasks import TASKS
    from draftwood_diffusion.parallel.run import Parallel

    names = list(TASKS) if tasks == "all" else [each.strip() for each in tasks.split(",")]
    typed = [each.strip() for each in methods.split(";")]
    asked = Parallel(names, typed, items, exercises, block_length, seed)
    with progress() as bar:
        cells = list(bar.track(asked.run(), len(names) * len(typed), description="prices"))
    if as_json:
        rows = [{**asdict(each), "tokens_per_pass": each.tokens_per_pass} for each in cells]
        click.echo(json.dumps(rows))
        return
    output().print(table(cells))


def table(cells: "Sequence[Cell]") -> "Table":
    """One row for each method, means over tasks, and the task on which it is worst."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("method", "tokens per pass", "bits", "right", "most bits", "on"):
        found.add_column(head, justify="left" if head in ("method", "on") else "right")
    for method in dict.fromkeys(each.method for each in cells):
        own = [each for each in cells if each.method == method]
        worst, count = max(own, key=lambda each: each.bits), len(own)
        found.add_row(
            method,
            f"{sum(each.tokens_per_pass for each in own) / count:.2f}",
            f"{sum(each.bits for each in own) / count:.2f}",
            f"{sum(each.accuracy for each in own) / count:.2f}",
            f"{worst.bits:.2f}",
            worst.task if worst.bits > 1e-9 else "",
        )
    return found
