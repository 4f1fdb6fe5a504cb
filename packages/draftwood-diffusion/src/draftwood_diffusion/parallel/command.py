"""`draftwood bench parallel`: what each rule of unmasking costs, in bits or on a model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from draftwood_diffusion.parallel.measured import Asked, Measured, MethodRow
    from draftwood_diffusion.parallel.run import Cell

METHODS = (
    "one-by-one;left-to-right;random;freedave;top-k,k=2;top-k,k=4;threshold;threshold,tau=0.6;factor;"
    "local-leap;ccd;ccd-agreement;entropy;longest-prefix;threshold+adablock"
)
OF_MODELS = ("prompts", "judge", "output", "temperature", "max_new_tokens", "threads")
OF_TASKS = ("tasks", "items", "exercises")


@click.command(short_help="Prices in bits of rules that write several tokens a pass.")
@click.option(
    "--tasks", default="all", show_default=True, metavar="A,B,C", help="Names of tasks, or all."
)
@click.option(
    "--methods",
    default=METHODS,
    metavar="A;B;C",
    help="As 'draftwood generate' takes them, with a semicolon between.",
)
@click.option(
    "--items", type=click.IntRange(2, 9), default=5, show_default=True, help="Items of a list."
)
@click.option(
    "--exercises", type=click.IntRange(1), default=3, show_default=True, help="Of each task."
)
@click.option(
    "--block-length",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens that are filled together.  [default: the model's own, else 16]",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first exercise."
)
@click.option("--model", metavar="NAME|FOLDER", help="A model that fills masks, to be measured.")
@click.option(
    "--prompts",
    type=options.TextFile(),
    metavar="FILE",
    help="Beginnings for --model, one on each line, in the place of tasks.",
)
@click.option("--judge", metavar="MODEL", help="Says how likely texts behind --prompts are.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Records of --model; a run that was stopped goes on there.",
)
@options.text_option("temperature", 0.0)
@options.text_option("max_new_tokens", 64)
@options.threads
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array and nothing else.")
def parallel(as_json: bool, **given: Any) -> None:
    """Measure what rules of unmasking cost where every right answer is known.

    A model with exact distributions fills the masks at temperature 1. bits is the divergence of the
    task's answers from those that the rule writes: 0 where it writes as one by one does. Each is
    computed over all answers, not drawn. One task is told in full; of several, the mean and the
    worst.

    With --model a trained model writes the answers: tokens per pass, and right answers or, behind
    --prompts, nats per token under --judge. Others stand beside the first method, prompt by prompt.

    \b
    Examples:
      draftwood bench parallel
      draftwood bench parallel --tasks shuffle --methods "top-k,k=2;threshold,tau=0.5" --json
      draftwood bench parallel --model stories-diffusion --prompts FILE --judge stories-15m
    """
    if given["model"] is not None:
        return _on_a_model(given, as_json)
    _refuse(OF_MODELS, "{} is for a trained model; name one with --model")
    _on_lists(given, as_json)


def _refuse(names: "Sequence[str]", why: str) -> None:
    """Raise ValueError for the first of these options that was typed."""
    if found := options.typed(*names):
        raise ValueError(why.format(f"--{found[0].replace('_', '-')}"))


def _names(tasks: str) -> list[str]:
    from draftwood_diffusion.lists.tasks import TASKS

    return list(TASKS) if tasks == "all" else [each.strip() for each in tasks.split(",")]


def _on_lists(given: dict[str, Any], as_json: bool) -> None:
    from draftwood_diffusion.parallel.run import Parallel

    names, typed = _names(given["tasks"]), [each.strip() for each in given["methods"].split(";")]
    length = 16 if given["block_length"] is None else given["block_length"]
    asked = Parallel(names, typed, given["items"], given["exercises"], length, given["seed"])
    with progress() as bar:
        cells = list(bar.track(asked.run(), len(names) * len(typed), description="prices"))
    if as_json:
        rows = [{**asdict(each), "tokens_per_pass": each.tokens_per_pass} for each in cells]
        click.echo(json.dumps(rows))
        return
    output().print(table(cells))


def table(cells: "Sequence[Cell]") -> "Table":
    """One row for each method, means over tasks, and the task on which it is worst."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("method", "tokens per pass", "bits", "right", "most bits", "on"):
        found.add_column(head, justify="left" if head in ("method", "on") else "right")
    for method in dict.fromkeys(each.method for each in cells):
        own = [each for each in cells if each.method == method]
        worst, count = max(own, key=lambda each: each.bits), len(own)
        found.add_row(
            method,
            f"{sum(each.tokens_per_pass for each in own) / count:.2f}",
            f"{sum(each.bits for each in own) / count:.2f}",
            f"{sum(each.accuracy for each in own) / count:.2f}",
            f"{worst.bits:.2f}",
            worst.task if worst.bits > 1e-9 else "",
        )
    return found


def _on_a_model(given: dict[str, Any], as_json: bool) -> None:
    """Write texts with a model, and tell figures of each method."""
    from draftwood_diffusion.parallel.measured import rows_of

    measured = _measured(given)
    same = ("model", "judge", "tasks", "items", "exercises", "seed", "block_length")
    told = {name: given[name] for name in (*same, "temperature", "max_new_tokens", "prompts")}
    with progress() as bar:
        records = list(bar.track(measured.run(told), measured.texts, description="texts"))
    rows = rows_of(records)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in rows]))
        return
    output().print(model_table(rows, "right" if given["prompts"] is None else "nats a token"))


def _measured(given: dict[str, Any]) -> "Measured":
    """Check what is asked, then load the models.

    Raises:
        ValueError: for options that do not go together.
    """
    from draftwood.model_names import ModelNames
    from draftwood.sampling_params import SamplingParams
    from draftwood_diffusion.opening import BLOCK_LENGTH, masked_model
    from draftwood_diffusion.parallel.measured import Measured
    from draftwood_diffusion.unmasking import parse

    asked, typed = _asked(given), [each.strip() for each in given["methods"].split(";")]
    for each in typed:
        parse(each)
    length = given["block_length"]
    settings = {} if length is None else {BLOCK_LENGTH: length}
    lm = options.load(ModelNames(model=given["model"]), "plain", measure=False)
    masked_model(lm, settings)
    judge = None
    if given["judge"] is not None:
        judge = options.load(ModelNames(model=given["judge"]), "plain", measure=False)
    names = ("temperature", "max_new_tokens", "seed")
    params = SamplingParams(raw=True, exact=False, **{name: given[name] for name in names})
    return Measured(lm, judge, typed, asked, params, settings, given["output"])


def _asked(given: dict[str, Any]) -> "list[Asked]":
    from draftwood_diffusion.parallel.measured import of_lines, of_tasks

    prompts, judge = given["prompts"], given["judge"]
    if (prompts is None) != (judge is None):
        raise ValueError(
            "texts behind --prompts have no right answer: --judge names the model that says how"
            " likely they are, and goes with --prompts alone"
        )
    if prompts is None:
        told = "answers of tasks are as long as the longest right one; leave {} out"
        _refuse(["max_new_tokens"], told)
        names = _names(given["tasks"])
        return of_tasks(names, given["items"], given["exercises"], given["seed"])
    _refuse(OF_TASKS, "--prompts stand in the place of tasks; leave {} out")
    lines = [each for each in prompts.split("\n") if each.strip()]
    if not lines:
        raise ValueError("--prompts needs a file with a beginning on a line, got none")
    return of_lines(lines)


def model_table(rows: "Sequence[MethodRow]", score: str) -> "Table":
    """One row for each method, with 95 % intervals, beside the first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    first = rows[0].method
    found.add_column("method")
    for head in ("tokens per pass [95 %]", score, f"tokens over {first}", f"{score} over {first}"):
        found.add_column(head, justify="right")
    for each in rows:
        figures = (each.tokens_per_pass, each.score, each.more_tokens, each.more_score)
        found.add_row(each.method, *("" if one is None else str(one) for one in figures))
    return found
