"""`draftwood train RECIPE`: one command per recipe, with the recipe's fields as options."""

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from draftwood.cli import options
from draftwood.cli.terminal import notes, output
from draftwood.optional import install_command
from draftwood_train.cli.data import SEED, count_of

if TYPE_CHECKING:
    from draftwood_train.loop import Outcome, TrainingSettings
    from draftwood_train.recipe import DrafterRecipe

RECIPES = Path(__file__).parents[1] / "recipes"
PART = options.NumberRange(0, 1, min_open=True)
FINITE = options.NumberRange(0, inf, min_open=True, max_open=True)


def recipe_names() -> list[str]:
    """Names of recipes, from their files, so that help does not load them."""
    return sorted(path.stem for path in RECIPES.glob("[!_]*.py"))


class RecipeCommand(click.Command):
    """Command that trains with one recipe, loaded when used."""

    def __init__(self, name: str) -> None:
        help = (
            f"Train a drafter of the kind {name} on DATA, into the folder OUTPUT.\n\n"
            "DATA is what 'draftwood train data' made. Checkpoints and logs for TensorBoard lie"
            " beside OUTPUT, in OUTPUT.training. A training that was stopped, by whatever, goes on"
            " with the same command and --resume."
        )
        article = "an" if name[0] in "aeiou" else "a"
        short = f"Train {article} {name} drafter."
        super().__init__(name, callback=self._run, help=help, short_help=short)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*_common(), *recipe_options(_recipe(str(self.name))), *super().get_params(ctx)]

    def _run(self, **given: Any) -> None:
        recipe = _recipe(str(self.name))
        source = click.get_current_context().get_parameter_source("start_from")
        gains = getattr(recipe, "gains", None)  # parts that are built as --start-from says
        if given["start"] and source is ParameterSource.COMMANDLINE and not gains:
            raise click.UsageError(
                "the drafter of --from has all weights already; leave out --start-from"
            )
        own = {each.name: given.pop(each.name) for each in fields(recipe)}  # type: ignore[arg-type]
        run(recipe(**own), given)


def _recipe(name: str) -> "type[DrafterRecipe]":
    try:
        import accelerate  # noqa: F401
        import tensorboard  # noqa: F401
    except ImportError:
        raise ImportError(
            f"training needs further packages: {install_command('draftwood-train')}"
        ) from None
    from draftwood_train.registry import recipe_class

    return recipe_class(name)


def recipe_options(recipe: "type[DrafterRecipe]") -> Iterator[click.Option]:
    """The fields of a recipe as options, with the help that their metadata have."""
    types = get_type_hints(recipe)
    for each in fields(recipe):  # type: ignore[arg-type]
        kind, default = types[each.name], None if each.default is MISSING else each.default
        choice, words = get_origin(kind) is Literal, each.metadata.get("help", each.name)
        flag = f"--{each.name.replace('_', '-')}"
        yield click.Option(
            [each.metadata.get("option", flag), each.name],
            type=click.Choice(list(get_args(kind))) if choice else kind,
            default=default,
            show_default=True,
            help=f"{words[:1].upper()}{words[1:]}.",
        )


def _common() -> list[click.Parameter]:
    """Parameters that every recipe's command takes."""
    path = click.Path(path_type=Path)
    above, some = options.NumberRange(min=0, min_open=True), click.IntRange(min=1)
    share, many = options.NumberRange(0, 1), options.THREADS

    def option(name: str, type: Any, default: Any, help: str, **more: Any) -> click.Option:
        return click.Option(
            [name], type=type, default=default, help=help, show_default=True, **more
        )

    numbers = click.Choice(["bfloat16", "float32"])
    return [
        click.Argument(["data"], type=path),
        click.Argument(["output_folder"], type=path, metavar="OUTPUT"),
        option("--steps", some, None, "Steps to train for."),
        click.Option(["--tokens"], callback=_tokens, help="Tokens to train on, such as 5m."),
        option("--minutes", FINITE, None, "Minutes to train for.  [default: 60]"),
        option("--cpu-minutes", FINITE, None, "The same, of each thread's work alone."),
        option(
            "--draft-vocabulary",
            some,
            None,
            "Tokens that it drafts, the data's most frequent.  [default: those of --from, else"
            " 8192]",
        ),
        option("--rows", some, 16, "Rows of a batch."),
        option("--places", some, 512, "Tokens of a row; longer texts are cut."),
        option("--accumulate", some, 1, "Batches that make a step."),
        option("--learning-rate", FINITE, 5e-3, "Of matrices, with Muon."),
        option("--other-rate", FINITE, 1e-3, "Of all else, and of CTC's frames, with AdamW."),
        option("--warm-up", click.IntRange(min=0), 20, "Steps in which the rates rise."),
        option("--decay", share, 0.3, "Share of the training in which they fall."),
        option("--average", share, 0.0, "Share, at the end, whose weights are averaged."),
        option("--flattest", PART, 1.0, "Share of the texts, those the target was least sure of."),
        option("--judge-every", some, 100, "Steps between two looks at held-out texts."),
        option("--judge-minutes", above, None, "Minutes between two looks, rather than steps."),
        option("--patience", some, None, "Looks without a better result that end it."),
        option("--checkpoint-minutes", above, 3.0, "Between two checkpoints."),
        option("--seed", SEED, 0, "Of texts' order, new weights and noise."),
        option("--precision", numbers, None, "Of products.  [default: bfloat16 where it is fast]"),
        click.Option(
            ["--from", "start"],
            type=path,
            help="A drafter to go on from, of this target or of the model it was tuned from.",
        ),
        click.Option(["--resume"], is_flag=True, help="Go on after the newest checkpoint."),
        click.Option(["--model"], help="The target.  [default: the one that wrote the data]"),
        click.Option(["--threads"], type=many, help="CPU threads.  [default: PyTorch's choice]"),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print one JSON object and nothing else."
        ),
    ]


def _tokens(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return None if value is None else count_of(context, parameter, value)


def run(recipe: "DrafterRecipe", given: dict[str, Any]) -> None:
    """Train as the options say."""
    import torch

    from draftwood_train.checkpoints import Checkpoint
    from draftwood_train.run import Training

    if given["threads"] is not None:
        torch.set_num_threads(given["threads"])
    training = Training(
        recipe,
        given["data"],
        given["output_folder"],
        _settings(given),
        given["draft_vocabulary"],
        given["start"],
        given["model"],
        given["resume"],
        shlex.join(["draftwood", *sys.argv[1:]]),
    )
    if training.resume and not (training.output.exists() or training.folder.exists()):
        Checkpoint.read(training.folder)  # raises that there is none
    say = (lambda line: None) if given["as_json"] else _say
    _tell(training.output, training.run(say), given["as_json"])


def _say(line: str) -> None:
    notes().print(line, soft_wrap=True)


def _settings(given: dict[str, Any]) -> "TrainingSettings":
    from draftwood_train.loop import TrainingSettings, Unit
    from draftwood_train.optimisers import Rates
    from draftwood_train.precision import fast_precision

    chosen: list[Unit] = [unit for unit in get_args(Unit) if given[unit] is not None]
    if len(chosen) > 1:
        names = [unit.replace("_", "-") for unit in chosen]
        raise click.UsageError(f"give one of --{' and --'.join(names)}, not both")
    unit: Unit = chosen[0] if chosen else "minutes"
    same = ("rows", "places", "accumulate", "judge_every", "judge_minutes", "patience")
    same += ("checkpoint_minutes", "average", "flattest")
    return TrainingSettings(
        amount=given[unit] if chosen else 60,
        unit=unit,
        rates=Rates(given["learning_rate"], given["other_rate"], given["warm_up"], given["decay"]),
        seed=given["seed"],
        precision=given["precision"] or fast_precision(),
        **{name: given[name] for name in same},
    )


def _tell(folder: Path, outcome: "Outcome", as_json: bool) -> None:
    figures = dict(outcome.figures)
    if as_json:
        record = {
            "folder": str(folder),
            "ended": outcome.reason,
            "steps": outcome.step,
            "tokens": outcome.tokens,
            "seconds": round(outcome.seconds, 1),
            "held_out": figures,
        }
        click.echo(json.dumps(record))
        return
    output().print(
        f"{folder}: block efficiency {figures['block_efficiency']:.2f} on held-out text after step"
        f" {figures['step']:.0f} of {outcome.step} ({outcome.tokens:,} tokens, {outcome.reason})",
        soft_wrap=True,
    )
