"""`draftwood train judge`: a head on held-out texts, kind by kind."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from draftwood.cli import options
from draftwood.cli.terminal import output


@click.command(short_help="Judge a head on held-out texts, by kind of task.")
@click.argument("head")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--model", help="The target.  [default: the one that wrote the data]")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Held-out texts of each kind.",
)
@click.option(
    "--card",
    is_flag=True,
    help="Write the figures into the card of HEAD, and beside it as judged.json.",
)
@click.option("--threads", type=options.THREADS, help="CPU threads to run with.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array and nothing else.")
def judge(
    head: str,
    data: Path,
    model: str | None,
    most: int,
    card: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Judge HEAD, a drafter's name or folder, on the held-out texts of DATA.

    For each kind of task: the share of places where the likeliest draft token is right at depths 1
    to 3, each after the true tokens, the overlap with the target's distribution at temperature 1,
    and the tokens of a step with the best tree of 8 nodes. Data of the everyday mix hold out whole
    frames, entities, books and languages.

    \b
    Example:
      draftwood train judge my-drafter my-data
    """
    import torch

    from draftwood_train.by_kind import judge_kinds

    if threads is not None:
        torch.set_num_threads(threads)
    found = judge_kinds(head, data, model, most)
    if card:
        from draftwood_train.card import write

        words = ["draftwood", "train", "judge", Path(head).name, data.name, "--most", str(most)]
        words += [] if model is None else ["--model", model]
        write(head, data, found, shlex.join(words), model)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found]))
        return
    from rich.table import Table

    rows = [each.row() for each in found]
    shown = Table(*rows[0])
    for row in rows:
        shown.add_row(*row.values())
    output().print(shown)
