"""`draftwood train export` and `import`: EAGLE heads in the layouts of other programs."""

from pathlib import Path

import click

from draftwood.cli import options

FOLDER = click.Path(file_okay=False, path_type=Path)
model_option = click.option(
    "--model",
    default=options.DEFAULT_MODEL,
    show_default=True,
    help="The model that it was trained for.",
)


@click.command(short_help="Write an EAGLE head as speculators and vLLM read it.")
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FOLDER)
@model_option
@click.option("--verifier", help="Name under which vLLM finds the model.  [default: --model]")
def export(folder: Path, output: Path, model: str, verifier: str | None) -> None:
    """Write the EAGLE head in FOLDER to OUTPUT in the layout of the speculators package, whole:
    with the model's embedding and output rows.

    \b
    Example:
      draftwood train export my-drafter exported --verifier HuggingFaceTB/SmolLM2-135M-Instruct
    """
    options.check_weights(model)
    from draftwood.heads import folder as heads
    from draftwood.loading.models import load_model
    from draftwood_train.speculators import export as write

    trained = heads.load(folder)
    target = load_model(model, device="cpu").model
    click.echo(f"written to {write(output, trained, target, verifier or model)}")


@click.command("import", short_help="Read an EAGLE-3 head of speculators or SafeAILab.")
@click.argument("source", type=FOLDER)
@click.argument("output", type=FOLDER)
@model_option
def import_head(source: Path, output: Path, model: str) -> None:
    """Write the EAGLE-3 head in SOURCE, in the layout of speculators or SafeAILab, to OUTPUT as a
    head's folder, which --draft-model takes.

    \b
    Example:
      draftwood train import downloaded my-drafter --model TARGET
    """
    if not source.is_dir():
        raise ValueError(f"there is no folder {source}")
    options.check_weights(model)
    from draftwood.heads import folder
    from draftwood.loading.models import load_model
    from draftwood_train import speculators

    trained = speculators.read(source, load_model(model, device="cpu").model, model)
    card = f"# An imported EAGLE-3 head\n\nRead from `{source.name}` for `{model}`; its licence"
    card += " and data are those of its source."
    click.echo(f"written to {folder.save(output, trained, card)}")
