"""`draftwood train pack`, `export` and `import`: heads in fewer bits, and for other programs."""

from pathlib import Path
from typing import Literal

import click

from draftwood.cli import options

FOLDER = click.Path(file_okay=False, path_type=Path)
model_option = click.option(
    "--model",
    default=options.DEFAULT_MODEL,
    show_default=True,
    help="The model that it was trained for.",
)
force_option = click.option(
    "--force", is_flag=True, help="Replace the drafter that is in OUTPUT already."
)


def _require_new(output: Path, force: bool) -> None:
    """Raise ValueError for a folder that something lies in, unless it may be replaced."""
    if not force and output.is_dir() and any(output.iterdir()):
        raise ValueError(
            f"there is something in {output} already; name a new folder, or replace a drafter with"
            " --force"
        )


@click.command(short_help="Write a head in blocks of 4 or 8 bits.")
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FOLDER)
@click.option(
    "--blocks",
    type=click.Choice(["Q8_0", "Q4_1"]),
    default="Q8_0",
    show_default=True,
    help="Of its matrices: 8 bits, or 4 bits, to which the C++ library rounds layers anyway.",
)
@force_option
def pack(folder: Path, output: Path, blocks: Literal["Q8_0", "Q4_1"], force: bool) -> None:
    """Write the head in FOLDER to OUTPUT with its matrices in llama.cpp's blocks, a half or a third
    of the size; rows that make no whole blocks of 32 stay in bfloat16. It is used, and trained on
    with --from, as the one before.

    \b
    Example:
      draftwood train pack my-drafter small --blocks Q4_1
    """
    _require_new(output, force)
    from draftwood.heads import folder as heads

    written = heads.save(output, heads.load(folder), heads.card_of(folder), blocks)
    size = sum(path.stat().st_size for path in written.iterdir())
    click.echo(f"written to {written}, {size / 1e6:.1f} MB")


@click.command(short_help="Write an EAGLE head as speculators and vLLM read it.")
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FOLDER)
@model_option
@click.option("--verifier", help="Name under which vLLM finds the model.  [default: --model]")
@force_option
def export(folder: Path, output: Path, model: str, verifier: str | None, force: bool) -> None:
    """Write the EAGLE head in FOLDER to OUTPUT in the layout of the speculators package, whole:
    with the model's embedding and output rows.

    \b
    Example:
      draftwood train export my-drafter exported --verifier HuggingFaceTB/SmolLM2-135M-Instruct
    """
    _require_new(output, force)
    options.check_weights(model)
    from draftwood.heads import folder as heads
    from draftwood.loading.models import load_model
    from draftwood.storage.weights import settings_or_none
    from draftwood_train.speculators import export as write

    trained = heads.load(folder)
    loaded = load_model(model, device="cpu")
    says = settings_or_none(loaded.folder / "config.json") or {}
    architectures = says.get("architectures") or ()
    written = write(output, trained, loaded.model, verifier or model, architectures)
    click.echo(f"written to {written}")


@click.command("import", short_help="Read an EAGLE-3 head of speculators or SafeAILab.")
@click.argument("source", type=FOLDER)
@click.argument("output", type=FOLDER)
@model_option
@force_option
def import_head(source: Path, output: Path, model: str, force: bool) -> None:
    """Write the EAGLE-3 head in SOURCE, in the layout of speculators or SafeAILab, to OUTPUT as a
    head's folder, which --draft-model takes.

    \b
    Example:
      draftwood train import downloaded my-drafter --model TARGET
    """
    if not source.is_dir():
        raise ValueError(f"there is no folder {source}")
    _require_new(output, force)
    options.check_weights(model)
    from draftwood.heads import folder
    from draftwood.loading.models import load_model
    from draftwood_train.speculators import read

    trained = read(source, load_model(model, device="cpu").model, model)
    card = f"# An imported EAGLE-3 head\n\nRead from `{source.name}` for `{model}`; its licence"
    card += " and data are those of its source."
    click.echo(f"written to {folder.save(output, trained, card)}")
