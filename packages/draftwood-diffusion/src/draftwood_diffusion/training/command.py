"""`draftwood train diffusion`: convert a next-token model into one that fills masks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes, output

if TYPE_CHECKING:
    from draftwood_diffusion.training.loop import ConversionSettings

ABOVE = options.NumberRange(min=0, min_open=True)
SOME = click.IntRange(min=1)
IN_ORDER = 0.5
"""Share of blocks in order: beside none, the same minutes bring every held-out loss down."""


def _blocks(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Lengths of blocks, separated by commas."""
    parts = value.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"lengths of blocks look like 4,8,16, not {value!r}")
    return tuple(int(part) for part in parts)


def _count(context: click.Context, parameter: click.Parameter, value: str) -> int:
    from draftwood_train.cli.data import count_of

    return count_of(context, parameter, value)


@click.command(short_help="Convert a model into one that fills masks.")
@click.argument("model")
@click.argument("output_folder", metavar="OUTPUT", type=click.Path(file_okay=False, path_type=Path))
@click.option("--tokens", default="500k", show_default=True, callback=_count, help="Of own texts.")
@click.option("--writer", metavar="MODEL", help="Who writes the texts.  [default: MODEL itself]")
@click.option("--minutes", type=ABOVE, default=60.0, show_default=True, help="Of training.")
@click.option("--steps", type=SOME, help="Of training, in the place of minutes.")
@click.option("--rows", type=SOME, default=8, show_default=True, help="Of a batch.")
@click.option("--places", type=SOME, default=256, show_default=True, help="Tokens of a row.")
@click.option(
    "--blocks",
    default="4,8,16",
    show_default=True,
    callback=_blocks,
    help="Lengths of blocks, in turn; the converted model has the last one.",
)
@click.option(
    "--shifted/--unshifted",
    default=None,
    help="Predict a place from the row before it, or from its own.  [default: as MODEL does, and"
    " shifted where it predicts the next token]",
)
@click.option("--next-token", type=options.NumberRange(0), default=1.0, show_default=True)
@click.option("--masked", type=options.NumberRange(0), default=0.3, show_default=True)
@click.option(
    "--largest-weight",
    type=ABOVE,
    default=4.0,
    show_default=True,
    help="For 1/t; --certainty and --units weigh alike.",
)
@click.option("--certainty", is_flag=True, help="Second stage: be sure at once (dParallel).")
@click.option(
    "--units",
    type=options.NumberRange(0, 1),
    default=0.0,
    help="Placeholders for tokens that MODEL finds so likely (LUD), such as 0.9.",
)
@click.option(
    "--in-order",
    type=options.NumberRange(0, 1),
    help="Share of blocks that are masked from a place on, not here and there.  [default: 0.5; 0"
    " with --certainty and --units]",
)
@click.option(
    "--taught",
    type=click.Choice(("kl", "reverse-kl", "none")),
    default="reverse-kl",
    show_default=True,
    help="Divergence from the writer's distributions where it knows them; none learns its tokens.",
)
@click.option("--learning-rate", type=ABOVE, default=5e-4, show_default=True, help="Of matrices.")
@click.option("--other-rate", type=ABOVE, default=1e-4, show_default=True, help="Of all else.")
@click.option(
    "--decay",
    type=options.NumberRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of the stage in which the rates fall.",
)
@click.option("--whole-vocabulary", is_flag=True, help="Keep tokens that its texts do not use.")
@click.option(
    "--blend",
    type=options.NumberRange(0, 1),
    default=1.0,
    show_default=True,
    help="How far to go from MODEL's weights to the trained ones.",
)
@click.option("--int8", is_flag=True, help="Write the weights in 8 bits.  [default: bfloat16]")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Go on where a stage was stopped.")
@options.threads
@options.as_json
def diffusion(model: str, output_folder: Path, as_json: bool, **given: Any) -> None:
    """Convert MODEL, a Llama or Qwen that predicts the next token, into one that fills blocks of
    masks; the folder OUTPUT then loads as a model.

    MODEL writes its training texts itself. Texts and checkpoints lie in OUTPUT.training; a stage
    that was stopped, by whatever, goes on with the same command and --resume. Give OUTPUT as MODEL
    of another stage, for instance with --certainty, and the first MODEL as --writer.

    \b
    Example:
      draftwood train diffusion stories-15m my-stories --tokens 2m --minutes 150
    """
    from draftwood_diffusion.training.stage import Stage

    def settings(mask_token: int) -> "ConversionSettings":
        return _settings(mask_token, {**given, "shifted": shifted})

    stage = Stage(
        model,
        output_folder,
        tokens=given["tokens"],
        places=given["places"],
        writer=given["writer"],
        whole=given["whole_vocabulary"],
        block_length=given["blocks"][-1],
        in_8_bits=given["int8"],
        blend=given["blend"],
        resume=given["resume"],
        seed=given["seed"],
    )
    shifted = stage.is_shifted if given["shifted"] is None else given["shifted"]
    say = (lambda line: None) if as_json else (lambda line: notes().print(line, soft_wrap=True))
    state = stage.run(settings, say).state
    figures = state.history[-1]
    if as_json:
        told = {"folder": str(output_folder), "seconds": round(state.seconds, 1)}
        click.echo(json.dumps({**told, "held_out": figures}))
        return
    losses = ", ".join(
        f"{name} {each:.3f}" for name, each in figures.items() if name not in ("step", "tokens")
    )
    output().print(f"{output_folder}: {losses}", soft_wrap=True)


def _settings(mask_token: int, given: dict[str, Any]) -> "ConversionSettings":
    from draftwood_diffusion.training.certainty import Certainty
    from draftwood_diffusion.training.loop import ConversionSettings
    from draftwood_train.optimisers import Rates

    same = ("minutes", "steps", "rows", "blocks", "shifted", "next_token", "masked", "taught")
    in_order = given["in_order"]
    if in_order is None:
        in_order = 0.0 if given["certainty"] or given["units"] else IN_ORDER
    return ConversionSettings(
        mask_token,
        **{name: given[name] for name in (*same, "largest_weight", "units", "seed")},
        in_order=in_order,
        certainty=Certainty.weight if given["certainty"] else 0.0,
        rates=Rates(given["learning_rate"], given["other_rate"], 10, given["decay"]),
    )
