"""`draftwood train router`: learn which steps the leader should write."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes, progress
from draftwood_choices.frontier.leader import leader_option

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames


@click.command(short_help="Weights of step-router, by which two models write one text.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@options.model_options
@leader_option
@options.method
@click.option("--prompts", default="built-in", show_default=True, help="As for 'bench'.")
@click.option("--limit", type=click.IntRange(1), help="Most prompts in all.")
@click.option("--tau", type=float, default=0.0, show_default=True, help="Nats of advantage.")
@click.option(
    "--together",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Texts to write at once, in shared passes.",
)
@options.threads
@options.text_option("max_new_tokens", 256)
@options.text_option("temperature")
@options.text_option("seed", 0)
def router(
    file: Path,
    names: "ModelNames",
    leader: str,
    method: str | None,
    prompts: str,
    limit: int | None,
    tau: float,
    together: int,
    **decoding: Any,
) -> None:
    """Write FILE, a router for 'draftwood collaborate --rule step-router --router FILE'.

    Both models write each step of each text, and the leader judges both by its own log-probability;
    the router learns from the follower's pass alone which step the leader writes better. A run that
    was stopped goes on from the texts that it had.

    \b
    Example:
      draftwood train router gsm8k.json --leader qwen2.5-coder-1.5b --model qwen2.5-coder-0.5b \\
        --prompts gsm8k --limit 200
    """
    from draftwood.sampling_params import SamplingParams
    from draftwood_bench.plan.prompts import load_prompts
    from draftwood_choices.frontier.router_course import RouterCourse
    from draftwood_choices.frontier.run import sharing

    options.check_methods([method or names.drafts.method], names.given, drafts=names.drafts)
    names.require()
    ahead = replace(names, model=leader, draft_model=(), datastore=None, adapter=None)
    ahead.require()
    chosen = load_prompts(prompts, limit=limit).prompts
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent} for {file.name}; make it first")
    led, lm = sharing(options.load(ahead, "auto")), sharing(options.load(names, method))
    course = RouterCourse(led, lm, chosen, SamplingParams(**decoding), tau, together)
    with progress() as bar:
        found = course.learn(file, lambda prompts: bar.track(prompts, description="texts"))
    known = {name: value for name, value in found.about.items() if value is not None}
    told = ", ".join(f"{name} {value:.3g}" for name, value in known.items())
    notes().print(f"{file}: {told}", markup=False, soft_wrap=True)
