"""`draftwood methods`: what there is to choose from."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.methods import Recipe


@click.command(short_help="List the methods: what they need, do and gain.")
@click.option("--all", "everything", is_flag=True, help="All of them, with parts and sources.")
@options.as_json
def methods(everything: bool, as_json: bool) -> None:
    """List the methods: what each needs, what it does, and how fast it was measured to be.

    Without --all those are left out that were slower than plain decoding where they were measured,
    or were not measured though they need nothing that you would have to give.

    \b
    Examples:
      draftwood methods
      draftwood methods --all
      draftwood methods --json
    """
    from draftwood import methods as all_methods

    recipes = list(all_methods.known().values())
    if as_json:
        click.echo(json.dumps([describe(recipe) for recipe in recipes]))
        return
    shown = recipes if everything else [recipe for recipe in recipes if _is_worth_a_look(recipe)]
    console = output()
    for needs in dict.fromkeys(map(_needs, shown)):
        console.print(f"Need {' and '.join(needs) or 'nothing'}:", style="bold")
        console.print(_gains([recipe for recipe in shown if _needs(recipe) == needs]))
        console.print()
    if everything:
        for table in (_parts(recipes), _sources(recipes)):
            console.print(table)
            console.print()
    console.print(_what_figures_mean(shown), style="dim")
    if not everything:
        console.print(
            f"{len(recipes) - len(shown)} more with --all: slower than plain decoding where they"
            " were measured, or not measured. It also names parts and sources.",
            style="dim",
        )


def _is_worth_a_look(recipe: "Recipe") -> bool:
    """Whether a method pays, needs what only the user can give, or is an installed package's."""
    from draftwood.methods.measured import measured_speeds, pays
    from draftwood.methods.recipes import RECIPES

    if recipe.name in measured_speeds():
        return pays(recipe.name)
    return recipe.name == "plain" or bool(_needs(recipe)) or recipe not in RECIPES


def describe(recipe: "Recipe") -> dict[str, object]:
    """A recipe in the form that ``--json`` prints."""
    from draftwood import methods
    from draftwood.methods.measured import measured_speeds

    return {
        "name": recipe.name,
        "drafter": recipe.drafter.name,
        "shape": None if recipe.shape is None else recipe.shape.name,
        "nodes": None if recipe.shape is None else recipe.shape.nodes,
        "verifier": recipe.verifier.name,
        "lossless": recipe.lossless,
        "promise": recipe.promise,
        "needs_draft_model": methods.needs_draft_model(recipe),
        "needs_drafter": methods.needs_drafter(recipe),
        "needs": list(_needs(recipe)),
        "measured": [asdict(each) for each in measured_speeds().get(recipe.name, ())],
        "summary": recipe.summary,
        "source": recipe.source,
    }


def _needs(recipe: "Recipe") -> tuple[str, ...]:
    """The options without which a method does not run."""
    from draftwood import methods

    asked = {
        "--draft-model": methods.needs_draft_model(recipe),
        "--drafter": methods.needs_drafter(recipe),
        "--inexact": not recipe.lossless,
    }
    return tuple(option for option, is_asked in asked.items() if is_asked)


def _gains(recipes: "Sequence[Recipe]") -> "Table":
    """What methods of the same needs do; with figures where there are any."""
    from draftwood.methods.measured import measured_speeds

    has_figures = any(recipe.name in measured_speeds() for recipe in recipes)
    table = _table("method", *(("T = 0", "T = 1", "in") if has_figures else ()))
    table.add_column("what it does", overflow="fold")
    for recipe in recipes:
        figures = _speeds(recipe.name) if has_figures else ()
        table.add_row(recipe.name, *figures, recipe.summary, style=_style(recipe))
    return table


def _speeds(name: str) -> tuple[str, str, str]:
    """Times as fast as plain decoding, greedily and at temperature 1, and in which type."""
    from draftwood.methods.measured import measured_speeds

    if name == "plain":
        return ("1", "1", "")
    found = {each.temperature: each for each in measured_speeds().get(name, ())}
    greedy, drawn = (f"{found[each].decoding:.2f}" if each in found else "" for each in (0, 1))
    return (greedy, drawn, ", ".join(dict.fromkeys(each.dtype for each in found.values())))


def _what_figures_mean(recipes: "Sequence[Recipe]") -> str:
    from draftwood.methods.measured import measured_speeds

    places = dict.fromkeys(
        each.place for recipe in recipes for each in measured_speeds().get(recipe.name, ())
    )
    return (
        "T = 0 and T = 1: times as fast as plain decoding, greedily and at temperature 1, decoding"
        " alone, the median over prompts; where nothing stands, nothing was measured. Measured with"
        f" {'; '.join(places)}. 'draftwood compare' measures on your machine."
    )


def _parts(recipes: "Sequence[Recipe]") -> "Table":
    table = _table("method", "drafter", "shape", "verifier")
    for recipe in recipes:
        shape = "" if recipe.shape is None else recipe.shape.name
        parts = (recipe.name, recipe.drafter.name, shape, recipe.verifier.name)
        table.add_row(*parts, style=_style(recipe))
    return table


def _sources(recipes: "Sequence[Recipe]") -> "Table":
    table = _table("method")
    table.add_column("source", overflow="fold")
    for recipe in recipes:
        table.add_row(recipe.name, recipe.source, style=_style(recipe))
    return table


def _table(*titles: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=True)
    return table


def _style(recipe: "Recipe") -> str:
    return "" if recipe.lossless else "yellow"
