"""`draftwood bench pictures`: methods on pictures, beside plain drawing."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import completers, options, terminal
from draftwood_images import drawing_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftwood_images.drawing_model import DrawingModel
    from draftwood_images.measuring.run import PictureRun


@click.command(short_help="Pictures: tokens per pass and seconds beside plain drawing.")
@drawing_options.model
@click.option(
    "--methods",
    default="raced-jacobi,sjd",
    show_default=True,
    callback=options.method_names,
    metavar="A,B,C",
    shell_complete=completers.methods,
    help="Plain is always drawn too.",
)
@click.option(
    "--names",
    metavar="A,B,C",
    help="What to draw.  [default: names of characters that the model knows, evenly spread]",
)
@click.option(
    "--limit", type=click.IntRange(1), default=40, show_default=True, help="Most names in all."
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="N",
    help="Pictures of each name by each method.",
)
@options.text_option("seed", 0, "Of the first picture; the others have the next ones.")
@drawing_options.of_rule
@drawing_options.of_windows
@drawing_options.inexact
@drawing_options.dtype
@options.threads
@click.option(
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the records; a run that was stopped goes on there.",
)
@options.as_json
def pictures(
    model: str,
    methods: list[str],
    names: str | None,
    limit: int,
    inexact: bool,
    dtype: Any,
    folder: Path,
    as_json: bool,
    **given: Any,
) -> None:
    """Draw the same names and seeds by several methods, picture by picture in turns.

    Told are tokens per pass, seconds, how many times plain drawing's speed that is, paired by name,
    and pictures that are plain drawing's code by code. 'draftwood report' shows the pictures, how
    many tokens each pass gave, and where drafts fail.

    \b
    Examples:
      draftwood bench pictures --output runs/pictures
      draftwood bench pictures --methods sjd,gsd --inexact --whole --output runs/whole
      draftwood bench pictures --names "red apple,cat" --seeds 8 --output runs/two
    """
    from draftwood_images.measuring.table import compared, table
    from draftwood_images.sources import open_drawing

    drawing_options.require_methods(methods, inexact)
    named = _named(names)
    given |= {"methods": ["plain", *(each for each in methods if each != "plain")]}
    run = _run(open_drawing(model, dtype), named, limit, folder, given)
    with terminal.progress() as bar:
        task = bar.add_task("pictures", total=len(run.points) * len(run.names) * run.seeds)
        records = run.run(_settings(run, dtype, given), lambda: bar.update(task, advance=1))
    if as_json:
        found = {point: asdict(each) for point, each in compared(records).items()}
        click.echo(json.dumps(found))
    else:
        terminal.output(200).print(table(records).rich())


def _named(names: str | None) -> "list[str]":
    """Names as they were typed, each once; none where the model's are to be taken."""
    if names is None:
        return []
    found = [each for part in names.split(",") if (each := part.strip())]
    if not found:
        raise ValueError(f"--names needs a name, for instance 'red apple,cat', got {names!r}")
    return list(dict.fromkeys(found))


def _run(
    drawing: "DrawingModel", named: "Sequence[str]", limit: int, folder: Path, given: dict[str, Any]
) -> "PictureRun":
    from draftwood_images.measuring.names import names_for
    from draftwood_images.measuring.run import DrawnPoint, PictureRun

    rule, knobs = drawing_options.rule_of(drawing, given), drawing_options.knobs_of(given)
    points = {each: DrawnPoint(each, rule, knobs, given["seed"] or 0) for each in given["methods"]}
    chosen = named[:limit] or names_for(drawing.words, limit)
    return PictureRun(drawing, points, chosen, given["seeds"], folder)


def _settings(run: "PictureRun", dtype: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """All that a run depends on, as its folder keeps it."""
    from draftwood.native import threads
    from draftwood_bench.records.machine import processor

    point = next(iter(run.points.values()))
    usual = None if dtype == "int8" else dtype  # other models than this package's refuse int8
    return {
        **{"dtype": usual, "methods": list(run.points), "seed": point.seeds},
        **asdict(point.rule),
        **asdict(point.knobs),
        **{"processor": processor(), "threads": threads.threads()},
    }
