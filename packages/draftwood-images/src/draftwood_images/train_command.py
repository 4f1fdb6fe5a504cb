"""`draftwood train images`: a model that draws the pictures of a font or a folder."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes, output

SOME = click.IntRange(1)


@click.command(short_help="Model that draws a font's pictures, or a folder's.")
@click.argument("place", type=click.Path(path_type=Path), metavar="FONT|FOLDER")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="OUTPUT")
@click.option("--size", type=SOME, default=48, show_default=True, help="Pixels across a picture.")
@click.option(
    "--patch",
    type=SOME,
    default=4,
    show_default=True,
    help="Pixels across the square of a code; 1 takes grey levels as codes.",
)
@click.option("--codes", type=click.IntRange(2), default=512, show_default=True)
@click.option("--layers", type=SOME, default=5, show_default=True, help="Of the transformer.")
@click.option(
    "--hidden",
    type=click.IntRange(64),
    default=256,
    show_default=True,
    help="Size of its states, a multiple of 64.",
)
@click.option(
    "--minutes",
    type=options.NumberRange(0, min_open=True),
    default=240.0,
    show_default=True,
    help="A sixth is the autoencoder's.",
)
@click.option("--steps", type=SOME, help="Steps of either part, rather than minutes.")
@click.option("--batch", type=SOME, default=32, show_default=True, help="Pictures of a step.")
@click.option("--seed", default=0, show_default=True, help="Of new weights and of batches.")
@click.option(
    "--licence",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that is copied beside the model.",
)
@click.option("--classifier", is_flag=True, help="Train a classifier beside it, as judge.")
@click.option("--classifier-only", is_flag=True, help="Train that alone; OUTPUT stays as it is.")
@click.option("--resume", is_flag=True, help="Go on after the newest checkpoints.")
@click.option("--export-only", is_flag=True, help="Write OUTPUT of the checkpoints as they are.")
@options.as_json
@options.threads
def images(
    place: Path,
    folder: Path,
    minutes: float,
    steps: int | None,
    classifier: bool,
    classifier_only: bool,
    export_only: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Train an autoencoder and a transformer over words and codes, and write OUTPUT.

    A font has its pictures as coloured bitmaps, and Unicode names them; a folder has PNG files of
    one size, named by their words. A tenth of the names is held out, with all their variants.
    Checkpoints lie in OUTPUT.training; a training that was stopped goes on with --resume.

    \b
    Example:
      draftwood train images NotoColorEmoji.ttf my-emoji
      draftwood draw "red apple" --model my-emoji
    """
    from draftwood_images.training.run import PictureTraining

    if classifier_only and export_only:
        raise click.UsageError("give one of --classifier-only and --export-only, not both")
    lasts: dict[str, Any] = {"minutes": None if steps else minutes, "steps": steps}
    command = shlex.join(["draftwood", *sys.argv[1:]])
    training = PictureTraining(place, folder, **lasts, **given, command=command)
    if classifier or classifier_only:
        training.require_classifiable()
    say = (lambda line: None) if as_json else (lambda line: notes().print(line, soft_wrap=True))
    figures = dict[str, dict[str, float]]()
    if not classifier_only:
        figures |= training.store_best() if export_only else training.run(say)
    if classifier or classifier_only:
        figures["classifier"] = dict(training.classify(say).figures)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **figures}))
        return
    for part, row in figures.items():
        told = ", ".join(f"{name} {value:.4g}" for name, value in row.items())
        output().print(f"{folder}: {part}: {told}", soft_wrap=True)
