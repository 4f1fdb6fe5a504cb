"""`draftwood draw`: pictures of a name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import completers, options, terminal

if TYPE_CHECKING:
    from draftwood_images.drawing_model import DrawingModel
    from draftwood_images.sitting import Sitting

USUAL, MODEL = "raced-jacobi", "emoji"
START_NAMES = ("random", "left", "upper", "row", "upper-row")
"""Names of ``starts.STARTS``, which help can do without."""


@click.command(short_help="Draw pictures of a name.")
@click.argument("name", required=False, default="")
@click.option("--model", default=MODEL, show_default=True, help="A built-in name, or a folder.")
@click.option(
    "--method",
    "methods",
    default=USUAL,
    show_default=True,
    callback=options.method_names,
    metavar="A,B,C",
    shell_complete=completers.methods,
    help="How to draw; several draw the same seeds, a row of the sheet for each.",
)
@click.option(
    "--count", type=click.IntRange(1), default=1, show_default=True, help="Pictures, seed by seed."
)
@options.text_option("seed", 0, "Of the first picture; the others have the next ones.")
@options.text_option("temperature", 1.0)
@click.option(
    "--top-k",
    type=click.IntRange(0),
    help="Keep the k likeliest codes; 0 keeps all.  [default: the model's]",
)
@click.option("--guidance", type=click.FloatRange(0), help="1 for none.  [default: the model's]")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png")
@click.option("--show", is_flag=True, help="Show the pictures in the terminal.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write a page: sheets by method, tokens of each pass, and where drafts fail.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 16),
    default=16,
    show_default=True,
    help="Most draft tokens of a pass, for sjd, raced-jacobi and gsd.",
)
@click.option(
    "--whole", is_flag=True, help="Draft whole windows, not only as much as pays on this machine."
)
@click.option(
    "--start",
    type=click.Choice(START_NAMES),
    default="left",
    show_default=True,
    help="What they draft where no pass has been.",
)
@click.option(
    "--group", type=click.IntRange(1), default=10, show_default=True, help="Tokens of gsd's groups."
)
@click.option(
    "--distance",
    type=click.FloatRange(0),
    help="Squared distance in the codebook that gsd's groups have at most.  [default: any]",
)
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model draws.")
@click.option(
    "--together",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Pictures that share each pass.",
)
@click.option(
    "--dtype",
    type=click.Choice(["int8", "bfloat16", "float32"]),
    help="[default: int8; of models of Transformers their own]",
)
@options.threads
@options.as_json
def draw(
    name: str,
    model: str,
    methods: list[str],
    count: int,
    seed: int | None,
    output: Path | None,
    show: bool,
    report: Path | None,
    inexact: bool,
    together: int,
    dtype: Any,
    as_json: bool,
    **given: Any,
) -> None:
    """Draw pictures of NAME, words that the model knows; without words, of anything.

    Lossless methods draw what the model draws; raced-jacobi draws the very picture of a seed that
    plain drawing gives, in fewer passes. Ctrl-C keeps the pictures that are finished.

    \b
    Examples:
      draftwood draw "red apple" --seed 7 --count 9 --output sheet.png --show
      draftwood draw "red apple" --method plain,raced-jacobi,sjd --report page.html
      draftwood draw cat --method gsd --group 10 --inexact --show
    """
    from draftwood_images.methods import require_method
    from draftwood_images.sources import open_drawing

    for each in methods:
        require_method(each, inexact)
    sitting = _sitting(open_drawing(model, dtype), name, given)
    seeds = range(seed or 0, (seed or 0) + count)
    try:
        with terminal.progress() as bar:
            task = bar.add_task(name or "anything", total=len(methods) * count)
            sitting.run(methods, seeds, together, lambda: bar.update(task, advance=1))
    finally:
        if sitting.pictures:
            _keep(sitting, output, report)
    if as_json:
        click.echo(json.dumps(sitting.as_json()))
    else:
        _tell(sitting, show)


def _sitting(drawing: "DrawingModel", name: str, given: dict[str, Any]) -> "Sitting":
    """Prepare to draw by the command's options, and by the model's where these say nothing."""
    from draftwood_images.drawing import DrawingRule
    from draftwood_images.methods import WindowKnobs
    from draftwood_images.sitting import Sitting

    top_k, guidance = given["top_k"], given["guidance"]
    rule = DrawingRule(
        given["temperature"],
        drawing.top_k if top_k is None else top_k,
        drawing.guidance if guidance is None else guidance,
    )
    names = ("window", "start", "group", "distance", "whole")
    return Sitting(drawing, name, rule, WindowKnobs(**{each: given[each] for each in names}))


def _keep(sitting: "Sitting", path: Path | None, report: Path | None) -> None:
    """Write what is finished to where it was asked for."""
    if path is not None:
        sitting.write(path)
    if report is not None:
        from draftwood_images.report import write_page

        write_page(report, sitting)


def _tell(sitting: "Sitting", show: bool) -> None:
    """Print a line for each method, and the pictures where they are to be shown."""
    from draftwood_images.sheet import in_half_blocks

    console = terminal.output()
    for each in sitting.drawn:
        for picture in each.pictures if show else ():
            console.print(in_half_blocks(picture.pixels), soft_wrap=True)
        console.print(each.told(sitting.plain), markup=False, soft_wrap=True)
