"""`draftwood bench frontier`: quality and cost of a rule of collaboration, as its knob turns."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output
from draftwood_choices.frontier.leader import leader_option

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames


@click.command(short_help="Two models, one text: quality and cost as a rule's knob turns.")
@options.model_options
@leader_option
@click.option("--leader-method", default="auto", show_default=True, help="How it drafts.")
@options.method
@click.option("--rule", default="foreal", show_default=True, help="Of 'draftwood collaborate'.")
@click.option("--knob", default="n", show_default=True, help="Of the rule.")
@click.option(
    "--values",
    default="5,15",
    show_default=True,
    callback=options.numbers(float, "0,5,15"),
    help="Of the knob.",
)
@click.option(
    "--router",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Trained weights of step-router.",
)
@click.option("--prompts", default="built-in", show_default=True, help="As for spec-bench.")
@click.option("--limit", type=click.IntRange(1), help="Most prompts in all.")
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Prompts to pass over first, such as those that a knob was chosen on.",
)
@click.option(
    "--together",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Answers to write at once, in shared passes; seconds are then each answer's share.",
)
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
    router: Path | None,
    prompts: str,
    limit: int | None,
    skip: int,
    together: int,
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
    from draftwood_choices.collaboration.rules.step_router import StepWeights, with_router
    from draftwood_choices.frontier.points import swept
    from draftwood_choices.frontier.run import Frontier, sharing
    from draftwood_choices.frontier.table import table

    rules, params = swept(rule, knob, values), SamplingParams(**decoding)
    if router is not None:
        rules = {point: with_router(each, router) for point, each in rules.items()}
    options.check_methods([method or names.drafts.method], names.given, drafts=names.drafts)
    options.check_methods([leader_method])
    names.require()
    ahead = replace(names, model=leader, draft_model=(), datastore=None, adapter=None)
    ahead.require()
    chosen = load_prompts(prompts, limit=None if limit is None else skip + limit)
    asked = chosen.prompts[skip:]
    if not asked:
        raise ValueError(
            f"--skip {skip} leaves none of {len(chosen.prompts)} prompts; give a smaller one"
        )
    led = options.load(ahead, leader_method)
    lm = options.load(names, method)
    settings = {
        **{"leader": led.name, "follower": lm.name, "rule": rule, "knob": knob},
        **{"methods": [led.method.name, lm.method.name], "prompts": prompts, **decoding},
        "model": {name: str(each) for name, each in asdict(names).items()},
    }
    if router is not None:
        known = StepWeights.load(router)
        settings["router"] = [*known.weights, known.bias]
    # of how many answers a control's share was measured belongs to it
    settings |= {name: each for name, each in {"limit": limit, "skip": skip}.items() if each}
    if together > 1:
        settings["together"], led, lm = together, sharing(led), sharing(lm)
    records = Frontier(led, lm, rules, asked, params, folder, together).run(settings)
    output(200).print(table(records).rich())
    if chosen.note:
        output().print(chosen.note, style="dim")
