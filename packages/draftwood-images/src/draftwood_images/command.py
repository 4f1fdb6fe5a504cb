"""`draftwood draw`: pictures of a name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import completers, options, terminal
from draftwood_images import drawing_options

if TYPE_CHECKING:
    from draftwood_images.drawing_model import DrawingModel
    from draftwood_images.sitting import Sitting

USUAL = "raced-jacobi"


@click.command(short_help="Draw pictures of a name.")
@click.argument("name", required=False, default="")
@drawing_options.model
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
@drawing_options.of_rule
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Keep the sheet of pictures.",
)
@click.option("--show", is_flag=True, help="Show the pictures in the terminal.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write a page: sheets by method, tokens of each pass, and where drafts fail.",
)
@drawing_options.of_windows
@drawing_options.inexact
@click.option(
    "--together",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Pictures that share each pass.",
)
@drawing_options.dtype
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
    from draftwood_images.sources import open_drawing

    drawing_options.require_methods(methods, inexact)
    if show and as_json:
        raise ValueError("--show prints pictures, which are no JSON; leave one of both out")
    if output is not None and output.suffix.lower() != ".png":
        raise ValueError(f"{output} would be a PNG file under another name; let it end in .png")
    if output is not None and report is not None and output.resolve() == report.resolve():
        raise ValueError(f"{output} cannot be picture and page at once; give --report another file")
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
        if not (output or report or show):
            terminal.notes().print("--output FILE.png keeps the pictures, --show shows them here")


def _sitting(drawing: "DrawingModel", name: str, given: dict[str, Any]) -> "Sitting":
    """Prepare to draw by the command's options."""
    from draftwood_images.sitting import Sitting

    rule = drawing_options.rule_of(drawing, given)
    return Sitting(drawing, name, rule, drawing_options.knobs_of(given))


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
    if show and console.color_system is None:
        told = (
            "--show paints with colours, which are off here; --output FILE.png keeps the pictures"
        )
        terminal.notes().print(told, markup=False)
        show = False
    for each in sitting.drawn:
        for picture in each.pictures if show else ():
            console.print(in_half_blocks(picture.pixels), soft_wrap=True)
        console.print(each.told(sitting.plain), markup=False, soft_wrap=True)
