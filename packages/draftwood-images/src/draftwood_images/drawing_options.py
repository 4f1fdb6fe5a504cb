"""Options that commands which draw share, and what they turn into."""

from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import completers, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftwood_images.drawing import DrawingRule
    from draftwood_images.drawing_model import DrawingModel
    from draftwood_images.methods import WindowKnobs

MODEL = "emoji"
START_NAMES = ("random", "left", "upper", "row", "upper-row")
"""Names of ``starts.STARTS``, which help can do without."""
OF_WINDOWS = ("window", "start", "group", "distance", "whole")

model = click.option(
    "--model",
    default=MODEL,
    show_default=True,
    shell_complete=completers.picture_models,
    help="A built-in name, or a folder.",
)
inexact = click.option(
    "--inexact", is_flag=True, help="Allow methods that change what the model draws."
)
dtype = click.option(
    "--dtype",
    type=click.Choice(["int8", "bfloat16", "float32"]),
    help="[default: int8; of models of Transformers their own]",
)


def of_rule(command: options.Command) -> options.Command:
    """Options of the rule by which codes are drawn."""
    for option in (
        click.option(
            "--guidance", type=options.NumberRange(0), help="1 for none.  [default: the model's]"
        ),
        click.option(
            "--top-k",
            type=click.IntRange(0),
            help="Keep the k likeliest codes; 0 keeps all.  [default: the model's]",
        ),
        options.text_option("temperature", 1.0),
    ):
        command = option(command)
    return command


def of_windows(command: options.Command) -> options.Command:
    """Options of methods that draft windows."""
    for option in (
        click.option(
            "--distance",
            type=options.NumberRange(0),
            help="Squared distance in the codebook that gsd's groups have at most.  [default: any]",
        ),
        click.option(
            "--group",
            type=click.IntRange(1),
            default=10,
            show_default=True,
            help="Tokens of gsd's groups.",
        ),
        click.option(
            "--start",
            type=click.Choice(START_NAMES),
            default="left",
            show_default=True,
            help="What they draft where no pass has been.",
        ),
        click.option(
            "--whole",
            is_flag=True,
            help="Draft whole windows, not only as much as pays on this machine.",
        ),
        click.option(
            "--window",
            type=click.IntRange(1, 16),
            default=16,
            show_default=True,
            help="Most draft tokens of a pass, for sjd, raced-jacobi and gsd.",
        ),
    ):
        command = option(command)
    return command


def require_methods(names: "Sequence[str]", inexact: bool) -> None:
    """Refuse methods that pictures do not have, and typed options of windows that none reads.

    Raises:
        ValueError: with how to mend it.
    """
    from draftwood_images.methods import require_method, require_read

    for each in names:
        require_method(each, inexact)
    require_read(options.typed(*OF_WINDOWS), names)


def rule_of(drawing: "DrawingModel", given: dict[str, Any]) -> "DrawingRule":
    """Rule by the options, and by the model's own values where these say nothing."""
    from draftwood_images.drawing import DrawingRule

    top_k, guidance = given["top_k"], given["guidance"]
    return DrawingRule(
        given["temperature"],
        drawing.top_k if top_k is None else top_k,
        drawing.guidance if guidance is None else guidance,
    )


def knobs_of(given: dict[str, Any]) -> "WindowKnobs":
    """Knobs of windows by the options."""
    from draftwood_images.methods import WindowKnobs

    return WindowKnobs(**{each: given[each] for each in OF_WINDOWS})
