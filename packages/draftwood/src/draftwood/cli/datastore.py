"""`draftwood datastore`: texts of files, from which drafts are copied."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, progress

if TYPE_CHECKING:
    from draftwood.sources.stored_index import StoreFacts


@click.group()
def datastore() -> None:
    """Sort texts once, so that drafts are copied from them: a model that writes what stands there
    writes it faster, and says the same as without.

    A datastore is used where --datastore names it, and holds the texts as tokens: whoever may read
    it can read them.

    \b
    Examples:
      draftwood datastore build src/*.py --output code.store
      draftwood generate "Add a test to main.py." --datastore code.store
    """


@datastore.command(short_help="Make a datastore of files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The datastore; one that is there is replaced.",
)
@click.option(
    "--model",
    default=options.DEFAULT_MODEL,
    show_default=True,
    help="Whose tokenizer it is for: a built-in name, a folder, a GGUF file or a Hugging Face id.",
)
@options.as_json
def build(files: tuple[str, ...], path: Path, model: str, as_json: bool) -> None:
    """Make a datastore of texts in UTF-8, 9 bytes per token. It is there whole or not at all.

    \b
    Example:
      draftwood datastore build notes/*.md --output notes.store --model smollm2-135m
    """
    options.check_weights(model)
    from draftwood.loading.models import load_tokenizer
    from draftwood.text.datastore import build_datastore

    began = time.perf_counter()
    tokenizer = load_tokenizer(model)
    with progress() as bar:
        task = bar.add_task("reading", total=None)
        facts = build_datastore(
            files,
            path,
            tokenizer,
            model,
            lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
        )
    _tell(path, facts, as_json, time.perf_counter() - began)


@datastore.command(short_help="Say what a datastore holds.")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@options.as_json
def show(path: Path, as_json: bool) -> None:
    """Say what a datastore holds, after comparing it with its checksum.

    \b
    Example:
      draftwood datastore show notes.store --json
    """
    from draftwood.sources.stored_index import read_index

    _tell(path, read_index(path).facts, as_json)


def _tell(path: Path, facts: "StoreFacts", as_json: bool, seconds: float | None = None) -> None:
    size = path.stat().st_size
    if as_json:
        took = {} if seconds is None else {"seconds": round(seconds, 3)}
        click.echo(json.dumps({"file": str(path), **asdict(facts), "bytes": size, **took}))
        return
    took = "" if seconds is None else f", in {seconds:.1f} s"
    output().print(
        f"{path}: {facts.tokens:,} tokens of {facts.texts:,} text{'s' * (facts.texts != 1)} for"
        f" {facts.model},"
        f" {size / 1e6:.1f} MB{took}",
        soft_wrap=True,
        markup=False,
    )
