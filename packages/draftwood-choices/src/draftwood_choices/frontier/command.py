"""`draftwood bench frontier`: quality and cost of a rule of collaboration, as its knob turns."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(each) for each in value.split(",")))
    except ValueError:
        raise click.BadParameter(f"needs numbers, as 0,5,15; got {value!r}") from None


@click.command(short_help="Two models, one text: quality and cost as a rule's knob turns.")
@options.model_options
@click.option("--leader", required=True, metavar="MODEL", help="The larger model.")
@click.option("--leader-method", default="auto", show_default=True, help="How it drafts.")
@options.method
@click.option("--rule", default="foreal", show_default=True, help="Of 'draftwood collaborate'.")
@click.option("--knob", default="n", show_default=True, help="Of the rule.")
@click.option("--values", default="5,15", show_default=True, callback=_numbers, help="Of the knob.")
@click.option("--prompts", default="built-in", show_default=True, help="As for spec-bench.")
@click.option("--limit", type=click.IntRange(1), help="Most prompts in all.")
@options.threads
@options.text_option("max_new_tokens")
@options.text_option("temperature")
@options.text_option("seed", 0)
@click.option(
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the records; a run that was stopped goes on there.",
)
def frontier(
    names: "ModelNames",
    leader: str,
    leader_method: str,
    method: str | None,
    rule: str,
    knob: str,
    values: tuple[float, ...],
    prompts: str,
    limit: int | None,
    folder: Path,
    **decoding: Any,
) -> None:
    """Sweep a knob of a rule by which two models write one text.

    Beside the rule at each value stand the two models alone, which is lossless, and two controls
    with the same share of the leader's tokens: at random places, and all at the beginning. Quality
    is the right number or the likeness to a reference where prompts have one, else what the leader
    itself holds likely. Differences from the leader alone are paired by prompt.

    \b
    Examples:
      draftwood bench frontier --leader qwen2.5-coder-1.5b --model qwen2.5-coder-0.5b \\
        --prompts gsm8k --limit 60 --values 5,15,25 --output runs/foreal
    """
    from draftwood.sampling_params import SamplingParams
    from draftwood_bench.plan.prompts import load_prompts
    from draftwood_choices.frontier.points import swept
    from draftwood_choices.frontier.run import Frontier
    from draftwood_choices.frontier.table import table

    rules, params = swept(rule, knob, values), SamplingParams(**decoding)
    options.check_methods([method or names.drafts.method], names.given, drafts=names.drafts)
    options.check_methods([leader_method])
    names.require()
    ahead = replace(names, model=leader, draft_model=(), datastore=None, adapter=None)
    ahead.require()
    chosen = load_prompts(prompts, limit=limit)
    led = options.load(ahead, leader_method)
    lm = options.load(names, method)
    settings = {
        **{"leader": led.name, "follower": lm.name, "rule": rule, "knob": knob},
        **{"methods": [led.method.name, lm.method.name], "prompts": prompts, **decoding},
        "model": {name: str(each) for name, each in asdict(names).items()},
    }
    records = Frontier(led, lm, rules, chosen.prompts, params, folder).run(settings)
    output(200).print(table(records).rich())
    if chosen.note:
        output().print(chosen.note, style="dim")
