"""`draftwood embed`: vectors of texts."""

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.generate import read_prompt, require_prompt
from draftwood.cli.terminal import output
from draftwood.cli.text_files import with_files

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.text.embeddings import EmbeddingTask

NUMBERS = 4
"""First entries of each vector that are shown."""
CHARACTERS = 32
"""Characters of a text that are shown."""
COMPARED = 8
"""Texts that are compared each with each; of more, each one's nearest is told."""


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--file",
    "files",
    type=options.TextFile(),
    metavar="FILE",
    multiple=True,
    help="A file that is a text. Repeatable.",
)
@options.weights_options
@options.threads
@click.option(
    "--pooling",
    type=click.Choice(("mean", "last")),
    default="mean",
    show_default=True,
    help="The mean of a text's states, or the state of its last token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON objects alone, a line for each.")
def embed(
    texts: tuple[str, ...],
    files: tuple[str, ...],
    names: "ModelNames",
    pooling: str,
    as_json: bool,
) -> None:
    """Turn each TEXT into a vector of length 1, the model's last hidden states.

    In a TEXT @FILE puts the text of a file and @@ is an @; - reads one from standard input.
    Without --json vectors are shown in part, and of several texts how similar they are: the cosine
    of each two.

    \b
    Examples:
      draftwood embed "a fox" "a wolf" "a mortgage"
      draftwood embed --file letter.txt --file answer.txt --json
      cat letter.txt | draftwood embed - --pooling last
    """
    if not texts and not files:
        raise click.UsageError(
            "Missing argument 'TEXT': give some text, --file FILE, or - for standard input"
        )
    if texts.count("-") > 1:
        raise ValueError("standard input is one text; give - once")
    names.require()
    given = [each if each == "-" else with_files(each) for each in texts]
    given += [each.removesuffix("\n") for each in files]
    for number, text in enumerate(given):
        require_prompt(text, f"text {number}")
    asked = [
        read_prompt(f"text {number}") if texts[number : number + 1] == ("-",) else text
        for number, text in enumerate(given)
    ]
    lm = options.load(names, measure=False)
    with closing(lm.embedding_task(asked, pooling)) as task:
        while task.step():
            pass
    if as_json:
        _print_lines(task)
    else:
        _print_table(asked, task, lm.name)


def _print_lines(task: "EmbeddingTask") -> None:
    for number, vector in enumerate(task.numbers()):
        told = {"index": number, "tokens": len(task.texts[number]), "embedding": vector}
        click.echo(json.dumps(told))


def _print_table(texts: list[str], task: "EmbeddingTask", name: str) -> None:
    """Print a row for each text, then how similar they are."""
    from rich.table import Table
    from rich.text import Text

    vectors = task.unit_vectors()
    table = Table("", "text", box=None, pad_edge=False)
    table.add_column("tokens", justify="right")
    table.add_column(f"first {NUMBERS} of {vectors.shape[1]} numbers", no_wrap=True)
    cosines, several = vectors @ vectors.T, len(texts) > 1
    heads = ["nearest"]
    if len(texts) <= COMPARED:
        heads = ["cos 0", *map(str, range(1, len(texts)))]
    for head in heads if several else ():
        table.add_column(head, justify="right", no_wrap=True)
    for number, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        shown = " ".join(text.split())
        shown = shown if len(shown) <= CHARACTERS else f"{shown[: CHARACTERS - 1]}…"
        first = " ".join(f"{each:7.4f}" for each in vector[:NUMBERS])
        near = _similar(cosines, number) if several else []
        table.add_row(str(number), Text(shown), str(len(task.texts[number])), first, *near)
    console = output()
    console.print(table)
    console.print(f"{name}, {vectors.shape[1]} dimensions, {task.pooling}", style="dim")


def _similar(cosines: Any, number: int) -> list[str]:
    """Cosines of a text with all, or the nearest other one's number and cosine."""
    row = cosines[number]
    if len(row) <= COMPARED:
        return [f"{each:.3f}" for each in row]
    nearest = max((each for each in range(len(row)) if each != number), key=row.__getitem__)
    return [f"{nearest}: {row[nearest]:.3f}"]
