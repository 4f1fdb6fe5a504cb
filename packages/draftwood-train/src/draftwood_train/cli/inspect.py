"""`draftwood inspect`: how much hidden states tell about the tokens to come."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, progress

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood_train.inspection.report import Inspection


def _numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in value.split(",")) if value else ()
    except ValueError:
        raise click.BadParameter(
            "takes numbers, for instance 2,15,27", context, parameter
        ) from None


@click.command(short_help="Tell how much hidden states know of the tokens to come.")
@click.argument("model", default=options.DEFAULT_MODEL)
@options.head_options
@options.threads
@click.option(
    "--text",
    type=options.TextFile(),
    metavar="FILE",
    help="A text of your own.  [default: the model answers prompts that draftwood composes]",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=24_000,
    show_default=True,
    help="Tokens to look at.",
)
@click.option(
    "--layers",
    callback=_numbers,
    metavar="N,...",
    help="Whose inputs the probes read.  [default: an early, a middle and a late one]",
)
@options.text_option("temperature", 1.0)
@options.text_option("seed", 0)
@options.as_json
def inspect(
    names: "ModelNames",
    text: str | None,
    tokens: int,
    layers: tuple[int, ...],
    temperature: float,
    seed: int,
    as_json: bool,
) -> None:
    """Tell how much MODEL's hidden states know of the tokens 2 to 4 ahead, and what a drafter that
    reads them may gain.

    Bits: how much less probes are surprised by a token 2, 3 or 4 ahead than one that sees the
    newest token alone. First they read what the next token's distribution shows, then the inner
    layers too. States of a network of the same shape that was never trained are the control: they
    mix earlier tokens too, and only what exceeds them was learnt. Intervals are of 95 %, over
    documents that no probe learnt from.

    Foretold: the acceptance of one-pass drafters that are such probes, with and without states.
    They are linear and learn from little text, so a trained head can do far better; nothing is
    foretold of drafters that run several steps, and nothing of seconds. Measured: an EAGLE head
    that comes with the model, or --draft-model HEAD, in decoding. A draft is right where it is the
    text's own token; with --text foretold drafts are those of a model that would write the text.

    \b
    Examples:
      draftwood inspect smollm2-135m
      draftwood inspect my-model --text my-texts.txt --json
    """
    from itertools import chain

    from draftwood_train.inspection.acceptance import eagle_head
    from draftwood_train.inspection.documents import BATCH, LONGEST, cut, written
    from draftwood_train.inspection.report import inspected, layers_of

    model = str(names.model)
    if "://" in model:
        raise ValueError(
            f"{model} is an address, and servers show no hidden states; give a model's folder or"
            " name"
        )
    if len(names.draft_model) > 1:
        raise ValueError("inspect measures one EAGLE head; give --draft-model once")
    lm = options.load(replace(names, draft_model=()), "plain", measure=False)
    reads = layers_of(lm.model, model, layers)
    head = eagle_head(lm, next(iter(names.draft_model), None))
    with progress() as shown:

        def bar(phase: str, total: int) -> Callable[[], None]:
            task = shown.add_task(phase, total=total)
            return lambda: shown.advance(task)

        if text is None:
            batches = -(-tokens // (BATCH * LONGEST))
            made = written(lm, tokens, temperature, seed)
            made = shown.track(made, total=batches, description="texts")
            documents = list(chain.from_iterable(made))
        else:
            documents = cut(lm, text, tokens)
        found = inspected(lm, documents, reads, seed, head, temperature, bar)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        _tell(found)


def _tell(found: "Inspection") -> None:
    from draftwood_train.inspection.view import bars, bits_table, drafters_table

    learnt, stopping, told = found.places
    console = output()
    console.print(
        f"{found.model}, inputs of layers {', '.join(map(str, found.layers))} and the last state;"
        f" {learnt} places learnt from, {stopping} to stop by, {told} told of;"
        f" {found.classes} tokens told apart, {found.covered:.0%} of the text",
        soft_wrap=True,
    )
    console.print(bits_table(found.bits))
    console.print(bars(found.bits, sys.stdout.encoding))
    console.print(drafters_table(found))
