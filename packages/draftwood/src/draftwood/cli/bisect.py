"""`draftwood check --bisect`: which part of draftwood changes a text."""

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from draftwood.cli.terminal import mark, output, progress

if TYPE_CHECKING:
    from draftwood.testing.bisect import SwitchResult
    from draftwood.text.language_model import LanguageModel


def bisect_text(
    lm: "LanguageModel",
    prompt: str,
    max_new_tokens: int,
    as_json: bool,
    adapter: str | None = None,
) -> bool:
    """Switch parts off one after the other and tell what that does; True if nothing changed.

    Args:
        adapter: of the model's weights.
    """
    from draftwood.testing.bisect import INSTEAD, bisect, first_changed, in_float32

    floats = partial(in_float32, lm, adapter)
    results: list[SwitchResult] = []
    with progress() as bar:
        task = bar.add_task("switching parts off", total=len(INSTEAD))
        for result in bisect(lm, lm.encode(prompt), max_new_tokens, floats):
            results.append(result)
            bar.update(task, advance=1, description=f"without {result.name}")
    named = first_changed(results)
    if as_json:
        report = {
            "named": named,
            "model": lm.name,
            "method": lm.method.name,
            "switches": [each.as_json() for each in results],
        }
        click.echo(json.dumps(report))
    else:
        _print(results, lm, named)
    return named is None


def _print(results: list["SwitchResult"], lm: "LanguageModel", named: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    console = output()
    title = (
        f"{lm.name} by {lm.method.name}: the text as parts are switched off, one after the other"
    )
    console.print(title, style="bold", markup=False, soft_wrap=True)
    table = Table("", "without", "", box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    for each in results:
        told = "[dim]-[/]" if each.changed is None else mark(not each.changed)
        table.add_row(told, each.name, escape(each.detail))
    console.print(table)
    if named is None:
        console.print("[green]no part changes a token of this text[/]", style="bold")
        return
    console.print(f"[red]{named}[/] changes the text first; docs/wrong-token.md says how to go on")
