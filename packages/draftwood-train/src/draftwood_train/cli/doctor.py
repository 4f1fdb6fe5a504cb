"""`draftwood train doctor`: where an EAGLE head's training and its decoding begin to differ."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import output

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel
    from draftwood_train.data.dataset import Dataset
    from draftwood_train.doctor.examination import Examination
    from draftwood_train.doctor.texts import HeldText


@click.command(short_help="Find where an EAGLE head's training and decoding differ.")
@click.argument("head", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The data it was trained on.  [default: the target answers new prompts]",
)
@click.option("--model", help="The target.  [default: the one that the head names]")
@click.option(
    "--texts", type=click.IntRange(min=1), default=12, show_default=True, help="Texts to replay."
)
@options.as_json
def doctor(head: Path, data: Path | None, model: str | None, texts: int, as_json: bool) -> None:
    """Replay held-out text of an EAGLE head in training's and in decoding's arithmetic.

    Names the first difference (template, target, shifted labels, layer, precision, vocabulary), and
    prints the share of right drafts by task and depth: decoding / training, and what the head's
    card promises. Ends with status 1 where something differs.

    \b
    Example:
      draftwood train doctor my-head --data my-data
    """
    import draftwood
    from draftwood.heads import folder as folders
    from draftwood_train.card import Promises
    from draftwood_train.data.dataset import Dataset
    from draftwood_train.data.manifest import Manifest
    from draftwood_train.doctor.examination import examine
    from draftwood_train.doctor.head import head_of
    from draftwood_train.target import target_weights

    trained, promises = folders.load(head), Promises.of(folders.card_of(head))
    reads, name = head_of(trained).config.reads, model or trained.target.name
    products = None if data is None else Manifest.read(data).target.products
    lm = draftwood.load(name, method="plain", dtype=products, device="cpu")  # as training reads it
    target = target_weights(lm.model, name, trained.draft_tokens)
    dataset = None if data is None else Dataset.open(data, lm.model)
    held_out, coverage = _texts(dataset, lm, reads, texts), None
    promised = None if dataset is None else promises.coverage(dataset.manifest.digest)
    if dataset is not None and promised is not None:
        coverage = dataset.coverage(target.draft_tokens, "held-out"), promised
    examined = examine(trained, lm, held_out, target, promises, coverage)
    (_tell_json if as_json else _tell)(examined)
    if not examined.is_sound:
        raise SystemExit(1)


def _texts(
    dataset: "Dataset | None", lm: "LanguageModel", reads: tuple[int, ...], most: int
) -> "list[HeldText]":
    from draftwood_train.doctor.texts import of_data, of_target

    if dataset is None:
        return of_target(lm, reads, most)
    return of_data(dataset, most)


def _tell_json(examined: "Examination") -> None:
    from draftwood_train.doctor.examination import table

    findings = [{**vars(each)} for each in examined.findings]
    record = {"sound": examined.is_sound, "findings": findings, "acceptance": table(examined)}
    click.echo(json.dumps(record))


def _tell(examined: "Examination") -> None:
    from rich.table import Table

    from draftwood_train.doctor.examination import table

    rows = table(examined)
    shown = Table("kind", *list(rows[0])[1:], title="right drafts: decoding / training")
    for row in rows:
        shown.add_row(*row.values())
    output().print(shown)
    for finding in examined.findings:
        output().print(str(finding), soft_wrap=True, markup=False)
    if examined.is_sound:
        output().print("sound: training and decoding agree", soft_wrap=True)
