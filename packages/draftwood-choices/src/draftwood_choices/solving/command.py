"""`draftwood bench solve`: share of tasks that search solves, beside what it costs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output
from draftwood_choices.search.command import head_for, judge_option, typed

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames


@click.command(short_help="Share of tasks that search solves, beside tokens, passes and seconds.")
@options.model_options
@click.option(
    "--methods",
    default="best-of,majority",
    show_default=True,
    metavar="A,B,C",
    help="Of 'draftwood solve'.",
)
@click.option(
    "--answers",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    metavar="N",
    help="Answers, in all or in a round.",
)
@click.option(
    "--rounds", type=click.IntRange(1), metavar="N", help="Rounds.  [default: the method's]"
)
@click.option(
    "--checker",
    metavar="FILE|regex:PATTERN|reference|half",
    help=(
        "Judge answers, as for 'draftwood solve'. reference knows the right answer, which tells"
        " what search could gain and is no result; half sees the first half of a prompt's"
        " instructions, rounded down."
    ),
)
@judge_option
@click.option("--prompts", default="gsm8k", show_default=True, help="As for spec-bench.")
@click.option("--limit", type=click.IntRange(1), help="Most prompts in all.")
@options.threads
@options.text_option("max_new_tokens")
@options.text_option("temperature", 0.7)
@options.text_option("seed", 0)
@click.option(
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the records; a run that was stopped goes on there.",
)
def solve(
    names: "ModelNames",
    methods: str,
    answers: int,
    rounds: int | None,
    checker: str | None,
    judge: Path | None,
    prompts: str,
    limit: int | None,
    folder: Path,
    **decoding: Any,
) -> None:
    """Search for answers to prompts whose right one is known, by several methods.

    Beside them stands one greedy answer. Tokens, passes, calls of the checker and seconds are of
    all that a search wrote; passes that several answers share count once. Differences from the
    greedy answer are paired by prompt. A JSONL file of prompts tells the number that an answer
    ends with as answer, or the word with which a text goes on as next_word.

    \b
    Examples:
      draftwood bench solve --prompts gsm8k --limit 60 --methods majority --output runs/votes
      draftwood bench solve --prompts ifeval --checker half --methods best-of --output runs/half
      draftwood bench solve --limit 60 --checker reference --output runs/bound
      draftwood bench solve --prompts lambada --limit 1600 --methods answer-mask \\
        --max-new-tokens 6 --output runs/words
    """
    from draftwood_bench.plan.prompts import load_prompts
    from draftwood_choices.search.checkers import checker_of
    from draftwood_choices.search.methods import check_methods, require_taken, search_method
    from draftwood_choices.solving.run import HALF, REFERENCE, Solving
    from draftwood_choices.solving.table import table

    ways = {each: search_method(each) for each in methods.split(",")}
    check_methods(ways.values(), checker is not None, judge is not None)
    of_draws = [] if any(each.draws for each in ways.values()) else typed("answers", "temperature")
    given = sorted(options.option_of(need) for need in names.given)
    of_drafts = [] if any(each.drafts for each in ways.values()) else given
    for each in ways.values():
        require_taken(each, rounds is not None, of_draws=of_draws, of_drafts=of_drafts)
    checking: Any = checker
    if checker not in (None, REFERENCE, HALF):
        checking = checker_of(checker, 10.0, 1 << 30)
    names.require()
    chosen = load_prompts(prompts, limit=limit)
    lm = options.load(names, None, measure=False)
    settings = {
        **{"model": {name: str(each) for name, each in asdict(names).items()}},
        **{"methods": methods, "answers": answers, "rounds": rounds, "checker": checker},
        **{"prompts": prompts, **decoding},
        **({} if judge is None else {"judge": str(judge)}),
    }
    solving = Solving(
        *(lm, ways, answers, rounds, checking, chosen.prompts, decoding, folder),
        head_for(lm, judge),
    )
    output(200).print(table(solving.run(settings)).rich())
    if chosen.note:
        output().print(chosen.note, style="dim")
