"""`draftwood train lists`: small recipes that write in other orders, on lists."""

import json
from pathlib import Path
from typing import Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, progress


@click.command(name="lists", short_help="Learn to insert or to mend tokens, on lists.")
@click.argument("recipe", type=click.Choice(["insertion", "order-agnostic"]))
@click.argument("output_folder", metavar="OUTPUT", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--task",
    type=click.Choice(["copy", "reverse", "sort"]),
    default="sort",
    show_default=True,
    help="What is inserted; order-agnostic mends lists that say each item three times.",
)
@click.option(
    "--items", type=click.IntRange(2, 9), default=5, show_default=True, help="Items of a list."
)
@click.option("--steps", type=click.IntRange(1), default=300, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=64, show_default=True, help="Of a step.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Go on where a training was stopped.")
@options.threads
@options.as_json
def lists(output_folder: Path, resume: bool, as_json: bool, **given: Any) -> None:
    """Teach a decoder of two layers a recipe from nothing: insertion, where every gap takes a token
    in each pass (Insertion Transformer), or an order-agnostic last layer, which mends errors behind
    it (COrAL). OUTPUT keeps the checkpoint.

    \b
    Example:
      draftwood train lists insertion my-lists --task sort
    """
    from draftwood_diffusion.training.list_recipes import ListSettings, ListTraining

    inserts = given["recipe"] == "insertion"
    if options.typed("task") and not inserts:
        raise ValueError("order-agnostic mends lists of its own; leave --task out")
    settings = ListSettings(**given)
    training = ListTraining(settings, output_folder, resume)
    with progress() as bar:
        task = bar.add_task("steps", total=settings.steps)
        figures = training.run(lambda step: bar.update(task, completed=step))
    if as_json:
        click.echo(json.dumps(figures))
        return
    told = ", ".join(f"{name.replace('_', ' ')} {each:.3f}" for name, each in figures.items())
    what = f"{settings.recipe} on {settings.task}" if inserts else settings.recipe
    output().print(f"{what}: {told}", soft_wrap=True)
