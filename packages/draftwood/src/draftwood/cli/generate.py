"""`draftwood generate`: a text for a prompt, or several."""

import json
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options, processes
from draftwood.cli.filling import Filling, filling_options
from draftwood.cli.painter import writer
from draftwood.cli.terminal import depths, notes, say_summary, summary
from draftwood.cli.text_files import with_files
from draftwood.cli.tree_view import say_tree
from draftwood.methods.answers import answers_method
from draftwood.sampling_params import sampling_params

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftwood.methods.answers import AnswersMethod
    from draftwood.model_names import ModelNames
    from draftwood.stats import DraftingTime, Stats
    from draftwood.text.language_model import LanguageModel
    from draftwood.text.stream import Generation


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--file", type=options.TextFile(), metavar="FILE", help="Read the prompt from a file."
)
@options.system
@options.model_options
@options.threads
@options.method
@options.tree
@options.overlap
@options.text_options()
@click.option(
    "--answers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="So many texts for the prompt, which is run once; with --seed S the seeds S, S + 1, ...",
)
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model says.")
@click.option("--stats", "show_stats", is_flag=True, help="Say on stderr what the text took.")
@click.option(
    "--show-tree", is_flag=True, help="Draw on stderr the draft tree of which most was accepted."
)
@filling_options
@options.tp
@options.colour
@options.as_json
def generate(
    prompt: str | None,
    file: str | None,
    system: str | None,
    names: "ModelNames",
    method: str | None,
    tree: str | None,
    overlap: bool,
    inexact: bool,
    answers: int,
    show_stats: bool,
    show_tree: bool,
    filling: Filling,
    colour: bool,
    as_json: bool,
    **decoding: Any,
) -> None:
    """Write a text for PROMPT, in which @FILE puts the text of a file and @@ is an @; - reads it
    from standard input, --file from a file.

    Text appears as it is accepted.

    \b
    Examples:
      draftwood generate "Name the planets." --show-tree
      draftwood generate "What does @main.py do?" --system "Answer in one sentence."
      cat letter.txt | draftwood generate - --temperature 0.7 --seed 1 --json
      draftwood generate "Name a colour." --temperature 1 --answers 3
      draftwood generate "The fox" --answers 3 --method distinct --temperature 1
      draftwood generate "Once" --model DIFFUSION_MODEL --method threshold --inexact --show
      draftwood generate "Name a colour." --draft-model smollm2-135m-ctc
      draftwood generate "Hi." --method rsd-s --draft-model smollm2-135m-eagle --tree 4x3
      draftwood generate "Describe Ada Lovelace." --json-schema person.json
    """
    decoding["exact"] = not inexact
    if (together := answers_method(method, filling.settings)) is not None:
        show = filling.show and together.show is None
        own = {"--tree": tree, "--overlap": overlap, "--show-tree": show_tree, "--show": show}
        lm, made = _together(together, names, own, (prompt, file, system), answers, decoding)
        paint = together.show if filling.show else None
        return _print_answers(made, lm, None, as_json, show_stats, paint)
    filling.require_none()
    drafts = names.drafts
    method = method if tree is None else method or drafts.method
    options.check_methods([method or drafts.method], names.given, inexact, overlap, drafts, tree)
    if answers > 1 and show_tree:
        raise ValueError("--show-tree draws a tree of one text; leave --answers out")
    names.require()
    sampling_params(None, decoding)  # refused before anything is loaded
    written = given_prompt(prompt, file)
    require_chat(system, decoding["raw"])
    processes.run_over(names.tp, names.model, names.dtype, names.device)
    written = read_prompt() if written is None and processes.leads(names.tp) else written
    lm = options.load(names, method, overlap, measure=False, tree=tree)
    asked = options.messages(lm, written or "", system)
    if answers > 1:
        several = lm.generate(asked, n=answers, **decoding)
        _print_answers(several, lm, decoding["seed"], as_json, show_stats, None)
        if show_stats:
            _print_instructions(lm)
        return lm.calibration.keep("draftwood generate")
    stream, since = lm.stream(asked, **decoding), time.perf_counter()
    place = writer(colour and not _is_form(decoding), lm.thought(stream.sequence.prompt))
    try:
        for piece in stream:
            if not as_json:
                place.write(piece)
    finally:  # what is said after the text begins on a line of its own
        if not as_json and stream.steps:
            place.end()
    result, wall = stream.result, time.perf_counter() - since
    wall -= result.stats.seconds["prefill"]
    if as_json:
        click.echo(json.dumps(result.as_json()))
    if show_tree:
        say_tree(stream, lm.tokenizer)
    if show_stats:
        context = len(stream.sequence.prompt) + len(result.token_ids) / 2
        _print_stats(result, verdict(result.stats, lm, wall, context))
        _print_instructions(lm)
    elif not as_json:
        say_summary(result.stats, result.method, result.finish_reason == "length")
    lm.calibration.keep("draftwood generate")


def _together(
    method: "AnswersMethod",
    names: "ModelNames",
    own: dict[str, Any],
    asked: tuple[str | None, str | None, str | None],
    count: int,
    decoding: dict[str, Any],
) -> "tuple[LanguageModel, Generation]":
    """Write all answers by a method of a package, in one text that holds the others.

    Args:
        own: options that drafting alone takes, with what they are.
        asked: the prompt, the text of its file, and what the model is told before it.
    """
    spare = {options.option_of(need) for need in names.given - method.needs}
    spare |= {name for name, given in own.items() if given}
    method.require(not decoding["exact"], names.given, spare)
    if names.tp > 1:
        raise ValueError(f"method {method.name!r} runs in one process; leave --tp out")
    names.require()
    params = sampling_params(None, decoding)
    prompt, file, system = asked
    written = whole_prompt(prompt, file)
    lm = options.load(names, "plain", measure=False)
    return lm, method.answer(lm, options.messages(lm, written, system), count, params)


def require_chat(system: str | None, raw: bool) -> None:
    """Raise ValueError for a system message beside a prompt that is no chat."""
    if system is not None and raw:
        raise ValueError("--system belongs to a chat; leave --raw out, or write it into the prompt")


def given_prompt(prompt: str | None, file: str | None) -> str | None:
    """Return the prompt, with the files that it names; None for one on standard input.

    Args:
        file: text of the file that holds it.

    Raises:
        click.UsageError: for no prompt, and for two.
        ValueError: for an empty one, and for a file that is not there.
    """
    if (prompt is None) == (file is None):
        several = "--file holds the prompt; leave PROMPT out, or write @FILE into it"
        missing = "Missing argument 'PROMPT': give some text, --file FILE, or - for standard input"
        raise click.UsageError(missing if file is None else several)
    if prompt == "-":
        return None
    written = with_files(prompt) if file is None else file.removesuffix("\n")  # type: ignore[arg-type]
    require_prompt(written)
    return written


def whole_prompt(prompt: str | None, file: str | None = None) -> str:
    """Return the prompt, read from standard input where that has it.

    Raises as ``given_prompt`` and ``read_prompt``.
    """
    written = given_prompt(prompt, file)
    return read_prompt() if written is None else written


def read_prompt(what: str = "the prompt") -> str:
    """Return the prompt, or what else it is, from standard input.

    Raises:
        ValueError: for one that is empty or no text.
    """
    try:
        prompt = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"standard input is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None
    require_prompt(prompt, what)
    return prompt


def require_prompt(prompt: str, what: str = "the prompt") -> None:
    """Raise ValueError for an empty prompt, or what else it is."""
    if not prompt.strip():
        raise ValueError(f"{what} is empty; give some text, or - to read it from standard input")


def _is_form(decoding: dict[str, Any]) -> bool:
    """True for texts that are no Markdown: JSON, those of a grammar, and what goes on raw."""
    return any(decoding[name] for name in ("raw", "json_schema", "grammar"))


def _print_answers(
    result: "Generation",
    lm: "LanguageModel",
    seed: int | None,
    as_json: bool,
    show_stats: bool,
    paint: "Callable[[LanguageModel, Generation], None] | None",
) -> None:
    """Print answers, each under a line with its number where there are several.

    Args:
        seed: of the first one.
        paint: prints an answer in a way of its own, and what it took.
    """
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        for number, answer in enumerate(result.answers):
            if result.others:
                origin = "" if seed is None else f", seed {seed + number}"
                notes().rule(f"answer {number + 1}{origin}", style="dim")
            if paint is None:
                click.echo(answer.text)
            else:
                paint(lm, answer)
    stats = sum((each.stats for each in result.others), result.stats)
    if show_stats:
        _print_stats(replace(result, stats=stats), stats.costs().lines)
    elif not as_json and paint is None:
        say_summary(stats, result.method)


def _print_stats(result: "Generation", costs: list[str]) -> None:
    notes().print(
        f"{summary(result.stats, result.method)}, ended by {_ends(result)}", soft_wrap=True
    )
    for line in details(result.stats, costs):
        notes().print(line, soft_wrap=True)


def _ends(result: "Generation") -> str:
    """Name why the answers ended, with counts where that differs: ``stop (2), length (1)``."""
    counts = Counter(each.finish_reason for each in result.answers)
    if len(counts) == 1:
        return result.finish_reason
    return ", ".join(f"{reason} ({count})" for reason, count in counts.items())


def _print_instructions(lm: "LanguageModel") -> None:
    found = options.instructions(lm)
    if found is not None:
        cache = options.cache(lm)
        stored = "" if cache is None else f"; keys and values: {cache}"
        notes().print(f"matrix products: {found}{stored}", markup=False, soft_wrap=True)


def verdict(
    stats: "Stats", lm: "LanguageModel", wall: float | None = None, context: float = 0.0
) -> list[str]:
    """Lines of what a step cost, and whether drafts paid.

    Args:
        wall: seconds after the prompt's pass, where they are known.
        context: tokens behind which passes ran, on average.
    """
    curve = lm.calibration.known()
    if curve is not None:
        return stats.costs(wall, curve, context).lines
    unknown = "whether drafts pay is known once passes were measured; 'draftwood tune' does it"
    return [*stats.costs(wall).lines, *([unknown] if stats.drafted else [])]


def details(stats: "Stats", costs: list[str]) -> list[str]:
    """Lines of details that the summary leaves out.

    Args:
        costs: lines of what a step cost.
    """
    seconds = ", ".join(f"{phase} {spent:.2f}" for phase, spent in stats.seconds.items())
    return [
        (
            f"forward passes {stats.target_runs}, draft tokens {stats.drafted}, accepted"
            f" {stats.accepted}; by depth {depths(stats)}"
        ),
        f"seconds: {seconds}",
        *costs,
        *([] if stats.drafting is None else [_hidden(stats.drafting)]),
    ]


def _hidden(drafting: "DraftingTime") -> str:
    """Describe how much of drafting was hidden behind forward passes."""
    return (
        f"drafting {drafting.seconds:.2f} s, {drafting.hidden_share:.0%} of it while the model ran;"
        f" drafted ahead in {drafting.ahead} passes, right in {drafting.kept}"
    )
