"""`draftwood collaborate`: one text by two models."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import generate, options
from draftwood.cli.terminal import notes

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.text.language_model import LanguageModel
    from draftwood_choices.collaboration.loop import Collaboration, CollaborationResult
    from draftwood_choices.collaboration.rule import CollaborationRule

COLOURS = {"leader": "cyan"}


def _text_options(command: Any) -> Any:
    for name in ("raw", "seed", "min_p", "top_p", "top_k", "temperature", "max_new_tokens"):
        command = options.text_option(name)(command)
    return command


@click.command()
@click.argument("prompt", required=False)
@click.option("--file", type=options.TextFile(), help="Read the prompt from a file.")
@options.system
@options.model_options
@click.option(
    "--leader",
    required=True,
    metavar="MODEL|ADDRESS",
    help="The larger model: named like --model, or the http(s) address of an OpenAI API.",
)
@click.option("--leader-dtype", metavar="TYPE", help="As --dtype, of the leader.")
@click.option(
    "--leader-method", default="auto", show_default=True, help="How the leader drafts for itself."
)
@click.option("--leader-model", metavar="NAME", help="The model's name at an address.")
@click.option(
    "--leader-key",
    metavar="VARIABLE",
    help="Environment variable that holds the key of an address.",
)
@click.option(
    "--rule",
    default="foreal",
    show_default=True,
    metavar="RULE[,KNOB=N]...",
    help="Who writes next; 'draftwood methods --package choices' lists the rules.",
)
@click.option(
    "--router",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Trained weights of step-router.",
)
@options.threads
@options.method
@_text_options
@click.option("--inexact", is_flag=True, help="Allow a text that neither model would write.")
@options.colour
@options.as_json
def collaborate(
    prompt: str | None,
    file: str | None,
    system: str | None,
    names: "ModelNames",
    leader: str,
    leader_dtype: str | None,
    leader_method: str,
    leader_model: str | None,
    leader_key: str | None,
    rule: str,
    router: Path | None,
    method: str | None,
    inexact: bool,
    colour: bool,
    as_json: bool,
    **decoding: Any,
) -> None:
    """Let two models write one text for PROMPT: a large one, --leader, where a rule wants it, and
    else a small one, --model.

    The text is neither model's own, so --inexact must allow it. Each drafts losslessly for itself.
    What the leader wrote is coloured on a terminal. Behind the text stands what each one did:
    tokens of the text, tokens written for nothing, tokens read to catch up, passes and seconds.

    Rules are foreal, entropy-switch and step-router, and the controls random, first-n, fixed-score
    and oracle; 'draftwood methods --package choices' tells what they do, and their knobs.

    \b
    Examples:
      draftwood collaborate "Why is the sky blue?" --leader qwen2.5-coder-1.5b --inexact
      draftwood collaborate "Name ten birds." --leader smollm2-135m --rule foreal,n=5 --inexact
      draftwood collaborate "Name ten birds." --leader http://localhost:8000 --inexact
    """
    from draftwood_choices.collaboration.rules import parse_rule
    from draftwood_choices.collaboration.rules.step_router import with_router

    chosen, is_address = parse_rule(rule), leader.startswith(("http://", "https://"))
    if router is not None:
        chosen = with_router(chosen, router)
    _require(
        chosen,
        inexact,
        is_address,
        {"--leader-model": leader_model, "--leader-key": leader_key},
        {
            "--leader-dtype": leader_dtype,
            "--leader-method": None if leader_method == "auto" else leader_method,
        },
    )
    options.check_methods([method or names.drafts.method], names.given, False, False, names.drafts)
    options.check_methods([leader_method])
    names.require()
    ahead = replace(names, model=leader, draft_model=(), datastore=None, adapter=None)
    if not is_address:
        ahead = replace(ahead, dtype=leader_dtype)
        ahead.require()
    generate.require_chat(system, decoding["raw"])
    written = generate.whole_prompt(prompt, file)
    lm = options.load(names, method, measure=False)
    asked = options.messages(lm, written, system)
    led = (
        _remote(leader, lm, asked, decoding, leader_model, leader_key)
        if is_address
        else options.load(ahead, leader_method, measure=False)
    )
    from draftwood_choices.collaboration.texts import collaborate as write

    _show(write(asked, led, lm, chosen, exact=False, **decoding), colour, as_json)


def _require(
    rule: "CollaborationRule",
    inexact: bool,
    is_address: bool,
    of_address: dict[str, Any],
    of_model: dict[str, Any],
) -> None:
    """Refuse what fits no text before anything is loaded.

    Args:
        of_address, of_model: options of a leader that is one, by flag.
    """
    if not inexact:
        raise ValueError(
            f"rule {rule.name!r} changes what either model would say; --inexact allows that"
        )
    given, kinds = of_model if is_address else of_address, ("an address", "a model")
    strange = [flag for flag, value in given.items() if value is not None]
    if strange:
        one, other = kinds[::-1] if is_address else kinds
        raise ValueError(f"{strange[0]} belongs to {one}; --leader names {other}")
    if is_address and (rule.reads_leader or rule.meets_at_tokens):
        raise ValueError(
            f"rule {rule.name!r} needs a leader that is loaded here, as an address sends texts"
            " alone; take foreal or step-router"
        )


def _remote(
    address: str,
    lm: "LanguageModel",
    asked: Any,
    decoding: dict[str, Any],
    model: str | None,
    variable: str | None,
) -> Any:
    from draftwood.sampling_params import SamplingParams
    from draftwood_choices.collaboration.address import RemoteWriter
    from draftwood_choices.collaboration.texts import prompt_text

    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise ValueError(f"the environment has no {variable}, which --leader-key names")
    params = SamplingParams(**decoding)
    return RemoteWriter(address, prompt_text(lm, asked, params.raw), params, model, key)


def _show(text: "Collaboration", colour: bool, as_json: bool) -> None:
    for passage in text:
        if not as_json:
            style = COLOURS.get(passage.writer) if options.is_coloured(colour) else None
            click.echo(click.style(passage.text, fg=style) if style else passage.text, nl=False)
    result = text.result
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        click.echo()
        for line in summary(result):
            notes().print(line, style="dim", markup=False, soft_wrap=True)
    for name, reason in result.lost.items():
        line = f"the {name} was lost: {reason}; the follower went on"
        notes().print(line, markup=False, soft_wrap=True)


def summary(result: "CollaborationResult") -> list[str]:
    """Lines that tell what each writer did."""
    lines = [
        f"{result.rule}: {result.tokens} tokens, the leader's share {result.leader_share:.0%},"
        f" ended by {result.finish_reason}"
    ]
    lines += [
        f"{name}: {cost.kept} tokens in {cost.turns} turns, {cost.dropped} dropped; read"
        f" {cost.prompt} of the prompt and {cost.caught_up} to catch up; {cost.passes} passes,"
        f" {cost.seconds:.2f} s"
        for name, cost in result.costs.items()
    ]
    return lines
