"""`draftwood methods`: list the methods."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, ruled_table
from draftwood.methods.trees import SHORT

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.methods.listings import CommandMethod, Listing, Named
    from draftwood.rules import TextRule


@click.command()
@click.option("--all", "everything", is_flag=True, help="All of them, with parts and sources.")
@click.option("--package", metavar="NAME", help="Those of one package alone, with their sources.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array and nothing else.")
def methods(everything: bool, package: str | None, as_json: bool) -> None:
    """List the methods: what each needs, what it does, and how fast it was measured to be.

    Those that were slower than plain decoding where they were measured stand at the end, a line
    each. --all adds parts, each one's tree and the forms that --tree takes, and sources.

    Each promises something of its text: lossless, same as one by one, trades quality (which needs
    --inexact), or another aim. Rules of sampling, which packages bring, go with every method.

    \b
    Examples:
      draftwood methods
      draftwood methods --all
      draftwood methods --package methods
      draftwood methods --json
    """
    from draftwood import methods as all_methods
    from draftwood.methods.listings import command_methods, of_package
    from draftwood.methods.measured import measured_speeds
    from draftwood.rules import installed_rules

    if package is None:
        listings, others = list(all_methods.listings().values()), []
    else:
        listings, others = of_package(package)
    if as_json:
        # scripts read every row of the whole list as a method
        click.echo(json.dumps([*map(describe, listings), *map(describe_rule, others)]))
        return
    if package is not None:
        output().print(_told([*listings, *others]))
        return
    rules = installed_rules()
    first = listings if everything else [each for each in listings if _is_worth_a_look(each)]
    slow = [each for each in listings if each not in first and each.name in measured_speeds()]
    console = output()
    for needs in dict.fromkeys(map(_needs, first)):
        console.print(f"Need {' and '.join(needs) or 'nothing'}:", style="bold")
        console.print(_gains([each for each in first if _needs(each) == needs]))
        console.print()
    if slow:
        console.print("Slower than plain decoding where they were measured:", style="bold")
        console.print(_gains(slow))
        console.print()
    if everything:
        for table in (_parts(listings), _sources([*listings, *rules, *command_methods()])):
            console.print(table)
            console.print()
    if rules:
        console.print("Rules of sampling, for --rules, with every method:", style="bold")
        console.print(_rules(rules))
        console.print()
    console.print(_what_figures_mean([*first, *slow]), style="dim")
    left = [each.name for each in listings if each not in first and each not in slow]
    if left:
        console.print(f"Not measured yet: {', '.join(left)}.", style="dim")
    if not everything:
        console.print("--all also names parts, trees and sources.", style="dim")


def _is_worth_a_look(listing: "Listing") -> bool:
    """True if a method pays, needs what only the user can give, or is an installed package's."""
    from draftwood.methods.listings import written_listings
    from draftwood.methods.measured import measured_speeds, pays

    if listing.name in measured_speeds():
        return pays(listing.name)
    known = listing.name in written_listings()
    return listing.name == "plain" or bool(_needs(listing)) or not known


def describe(method: "Named") -> dict[str, object]:
    """A method in the form that ``--json`` prints."""
    from draftwood import methods
    from draftwood.methods.measured import measured_speeds

    found = methods.listing(method)
    return {
        "name": found.name,
        "drafter": found.drafter,
        "shape": found.shape,
        "nodes": found.nodes,
        "verifier": found.verifier,
        "lossless": found.lossless,
        "promise": found.promise,
        "needs_draft_model": "draft-model" in found.needs,
        "needs_drafter": "head" in found.needs,
        "needs": [need.partition(" ")[0] for need in _needs(found)],
        "trees": list(found.trees),
        "tree": found.tree,
        "measured": [asdict(each) for each in measured_speeds().get(found.name, ())],
        "summary": found.summary,
        "source": found.source,
    }


def describe_rule(rule: "TextRule | CommandMethod") -> dict[str, object]:
    """A rule, or a method of a command, in the form that ``--json`` prints."""
    return {
        "name": rule.name,
        "option": _option(rule),
        "promise": rule.promise,
        "summary": rule.summary,
        "source": rule.source,
    }


def _option(rule: "Listing | TextRule | CommandMethod") -> str:
    from draftwood.methods.listings import CommandMethod, Listing

    if isinstance(rule, CommandMethod):
        return rule.option
    if isinstance(rule, Listing):
        return " ".join([f"--method {rule.name}", *_needs(rule)])
    inexact = " --inexact" if rule.promise == "trades quality" else ""
    return f"--rules {rule.name}={rule.published:g}{inexact}"


def _needs(listing: "Listing") -> tuple[str, ...]:
    """The options without which a method does not run."""
    from draftwood.drafters.resources import GIVEN

    asked = tuple(options.option_of(need) for need in GIVEN if need in listing.needs)
    return (*asked, "--inexact") if listing.promise == "trades quality" else asked


def _gains(listings: "Sequence[Listing]") -> "Table":
    """Table of methods with the same needs, with measured speeds where there are any."""
    from draftwood.methods.measured import measured_speeds

    has_figures = any(listing.name in measured_speeds() for listing in listings)
    table = ruled_table(("method", *(("T = 0", "T = 1", "in") if has_figures else ())))
    table.add_column("what it does", overflow="fold")
    for listing in listings:
        figures = _speeds(listing.name) if has_figures else ()
        table.add_row(listing.name, *figures, listing.summary, style=_style(listing))
    return table


def _speeds(name: str) -> tuple[str, str, str]:
    """Speed over plain decoding, greedy and at temperature 1, and the type of weights."""
    from draftwood.methods.measured import measured_speeds

    if name == "plain":
        return ("1", "1", "")
    found = {each.temperature: each for each in measured_speeds().get(name, ())}
    greedy, drawn = (f"{found[each].decoding:.2f}" if each in found else "" for each in (0, 1))
    return (greedy, drawn, ", ".join(dict.fromkeys(each.dtype for each in found.values())))


def _what_figures_mean(listings: "Sequence[Listing]") -> str:
    from draftwood.methods.measured import measured_speeds, places

    shown = [each for listing in listings for each in measured_speeds().get(listing.name, ())]
    return (
        "T = 0 and T = 1: times as fast as plain decoding, greedily and at temperature 1, decoding"
        " alone, the median over prompts; where nothing stands, nothing was measured. Measured with"
        f" {'; '.join(places(shown))}: --json tells these of each. 'draftwood compare' measures on"
        " your machine."
    )


def _parts(listings: "Sequence[Listing]") -> "Table":
    table = ruled_table(("method", "drafter", "shape", "verifier"))
    table.add_column("--tree", overflow="fold")
    for listing in listings:
        trees = " ".join(SHORT[form] for form in listing.trees)
        if listing.tree is not None:
            trees = f"{listing.tree} (or {trees})"
        parts = (listing.name, listing.drafter, listing.shape or "", listing.verifier, trees)
        table.add_row(*parts, style=_style(listing))
    return table


def _rules(rules: "Sequence[TextRule]") -> "Table":
    table = ruled_table(("option", "promise"))
    table.add_column("what it does", overflow="fold")
    for rule in rules:
        table.add_row(_option(rule), rule.promise, rule.summary, style=_style(rule))
    return table


def _sources(listed: "Sequence[Listing | TextRule | CommandMethod]") -> "Table":
    table = ruled_table(("name", "promise"))
    table.add_column("source", overflow="fold")
    for each in listed:
        table.add_row(each.name, each.promise, each.source, style=_style(each))
    return table


def _told(listed: "Sequence[Listing | TextRule | CommandMethod]") -> "Table":
    """Tell what each does, how it is called, and its source, a line each."""
    table = ruled_table(("name", "promise"))
    table.add_column("what it does, how to call it, source", overflow="fold")
    for each in listed:
        lines = "\n".join([each.summary, _option(each), each.source])
        table.add_row(each.name, each.promise, lines, style=_style(each))
    return table


def _style(listed: "Listing | TextRule | CommandMethod") -> str:
    return "" if listed.promise == "lossless" else "yellow"
