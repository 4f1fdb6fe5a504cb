"""`draftwood methods`: what there is to choose from."""

import json
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output

if TYPE_CHECKING:
    from draftwood.methods.listings import Named


@click.command(short_help="List the methods and where they come from.")
@options.as_json
def methods(as_json: bool) -> None:
    """List the methods: where each takes its draft tokens from, the shape of its tree, and what
    keeps the text the same.

    \b
    Examples:
      draftwood methods
      draftwood methods --json
    """
    from draftwood import methods as all_methods

    described = [describe(method) for method in all_methods.listings().values()]
    if as_json:
        click.echo(json.dumps(described))
    else:
        _print_table(described)


def describe(method: "Named") -> dict[str, object]:
    """A method in the form that ``--json`` prints."""
    from draftwood import methods

    found = methods.listing(method)
    return {
        "name": found.name,
        "drafter": found.drafter,
        "shape": found.shape,
        "nodes": found.nodes,
        "verifier": found.verifier,
        "lossless": found.lossless,
        "promise": found.promise,
        "needs_draft_model": methods.needs_draft_model(found),
        "needs_drafter": methods.needs_drafter(found),
        "summary": found.summary,
        "source": found.source,
    }


def _print_table(rows: list[dict[str, object]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    parts = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("method", "drafter", "shape", "verifier", "lossless"):
        parts.add_column(title, no_wrap=True)
    about = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    about.add_column("method", no_wrap=True)
    about.add_column("what it does")
    about.add_column("source", overflow="fold")
    for row in rows:
        style = "" if row["lossless"] else "yellow"
        lossless = "yes" if row["lossless"] else "no"
        parts.add_row(
            *(str(row[key] or "") for key in ("name", "drafter", "shape", "verifier")),
            lossless,
            style=style,
        )
        about.add_row(str(row["name"]), str(row["summary"]), str(row["source"]), style=style)
    console = output()
    console.print(parts)
    console.print()
    console.print(about)
    second = ", ".join(str(row["name"]) for row in rows if row["needs_draft_model"])
    console.print(f"A second model, --draft-model, need: {second}.", style="dim")
    learnt = ", ".join(str(row["name"]) for row in rows if row["needs_drafter"])
    console.print(f"A trained drafter, --drafter, need: {learnt}.", style="dim")
