"""`draftwood generate`: one prompt, one text."""

import json
import sys
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import depths, notes, say_summary, summary
from draftwood.cli.tree_view import best_step, draw_step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from draftwood.stats import Stats
    from draftwood.text.stream import Generation, Stream


@click.command(short_help="Write a text for a prompt.")
@click.argument("prompt")
@options.model_options
@click.option(
    "--method",
    default=options.DEFAULT_METHOD,
    show_default=True,
    help="How to decode; see 'draftwood methods'.",
)
@options.max_new_tokens(128)
@options.sampling_options
@click.option("--stop", multiple=True, help="End the text before this string. Repeatable.")
@click.option(
    "--raw", is_flag=True, help="Go on with the prompt as it stands, without the chat template."
)
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model says.")
@click.option("--stats", "show_stats", is_flag=True, help="Say on stderr what the text took.")
@click.option(
    "--show-tree", is_flag=True, help="Draw on stderr the draft tree of which most was accepted."
)
@options.as_json
def generate(
    prompt: str,
    model: str,
    draft_model: str | None,
    dtype: str | None,
    device: str | None,
    method: str,
    inexact: bool,
    show_stats: bool,
    show_tree: bool,
    as_json: bool,
    **decoding: object,
) -> None:
    """Write a text for PROMPT; - reads it from standard input.

    Text appears as it is accepted.

    \b
    Examples:
      draftwood generate "Name the planets." --method recycling --show-tree
      cat letter.txt | draftwood generate - --temperature 0.7 --seed 1 --json
    """
    prompt = read_prompt(prompt)
    options.check_methods([method], draft_model, inexact)
    lm = options.LoadedModels(model, draft_model, dtype, device).using(method)
    stream = lm.stream(prompt, exact=not inexact, **decoding)  # type: ignore[arg-type]
    try:
        for piece in stream:
            if not as_json:
                click.echo(piece, nl=False)
    finally:  # what is said after the text begins on a line of its own
        if not as_json:
            click.echo()
    result = stream.result
    if as_json:
        click.echo(json.dumps(result.as_json()))
    if show_tree:
        _print_tree(stream, lm.tokenizer)
    if show_stats:
        _print_stats(result)
    elif not as_json:
        say_summary(result.stats, result.method)


def read_prompt(prompt: str) -> str:
    """The prompt, from standard input where it is ``-``.

    Raises:
        ValueError: for one that is empty or no text.
    """
    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"standard input is not UTF-8 text: {error.reason} at byte {error.start}"
            ) from None
    if not prompt.strip():
        raise ValueError("the prompt is empty; give some text, or - to read it from standard input")
    return prompt


def _print_tree(stream: "Stream", tokenizer: "PreTrainedTokenizerBase") -> None:
    step = best_step(stream.steps)
    if step is None:
        notes().print("no draft tree to show: this text was written without guesses", style="dim")
        return
    number = stream.steps.index(step)
    notes().print(
        f"run {number} of {len(stream.steps) - 1}: {step.drafted} guesses, {step.accepted}"
        " accepted",
        style="dim",
    )
    notes().print(draw_step(step, tokenizer))


def _print_stats(result: "Generation") -> None:
    notes().print(
        f"{summary(result.stats, result.method)}, ended by {result.finish_reason}", soft_wrap=True
    )
    for line in details(result.stats):
        notes().print(line, soft_wrap=True)


def details(stats: "Stats") -> list[str]:
    """What the summary leaves out."""
    seconds = ", ".join(f"{phase} {spent:.2f}" for phase, spent in stats.seconds.items())
    return [
        (
            f"model runs {stats.target_runs}, guesses {stats.drafted}, accepted {stats.accepted};"
            f" by depth {depths(stats)}"
        ),
        f"seconds: {seconds}",
    ]
