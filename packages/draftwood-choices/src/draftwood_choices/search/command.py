"""`draftwood solve`: propose answers, judge them, go on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import generate, options
from draftwood.cli.terminal import notes
from draftwood.sampling_params import OPTIONS, SamplingParams
from draftwood_choices.search.methods import (
    METHODS,
    SearchOptions,
    Solution,
    check_methods,
    require_taken,
    search_method,
)

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.text.language_model import LanguageModel
    from draftwood_choices.search.proposals import Proposer
    from draftwood_choices.search.value_head import ValueHead

NOT_PASSED = 1  # exit code

judge_option = click.option(
    "--judge",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help=(
        "Judge by a value head that 'draftwood train value' wrote, for"
        f" {', '.join(name for name, way in METHODS.items() if way.takes_head)}."
    ),
)


def head_for(lm: "LanguageModel", folder: Path | None) -> "ValueHead | None":
    """The value head in a folder, of this model; None for no folder.

    Raises:
        ValueError: for a folder without a whole one, and a head of another model.
    """
    from draftwood_choices.search.value_head import ValueHead

    if folder is None:
        return None
    head = ValueHead.load(folder)
    head.require_model(lm)
    return head


def require_own_texts(rules: Mapping[str, float] | None) -> None:
    """Raise ValueError for rules that trade quality, which no flag of a search allows."""

    def changes(name: str, strength: float) -> bool:
        try:
            SamplingParams(rules={name: strength})
        except ValueError:
            return True
        return False

    if changing := [name for name, strength in (rules or {}).items() if changes(name, strength)]:
        raise ValueError(
            f"a search chooses among the model's own texts, and {', '.join(changing)} may change"
            " them; leave out of --rules what trades quality"
        )


def typed(*names: str) -> list[str]:
    """Options that the user of the running command typed, of parameters with these names."""
    return [f"--{each.replace('_', '-')}" for each in options.typed(*names)]


@click.command(short_help="Search for an answer that a checker passes.")
@click.argument("task", required=False)
@click.option("--file", type=options.TextFile(), metavar="FILE", help="Read the task from a file.")
@click.option(
    "--method",
    type=click.Choice(list(METHODS)),
    default="best-of",
    show_default=True,
    help="How to search.",
)
@click.option(
    "--answers",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    metavar="N",
    help="Answers, in all or in a round; children of a step at most.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    help="Rounds, steps that are expanded, or actions that are tried.  [default: the method's]",
)
@click.option(
    "--checker",
    metavar="FILE|regex:PATTERN",
    help=(
        "Judge answers: a program that reads one and prints a score (1 passes, 0 does not), a JSON"
        " schema's file (.json), or a pattern that an answer must hold."
    ),
)
@judge_option
@click.option(
    "--checker-seconds",
    type=options.NumberRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Most time of the checker for one answer.",
)
@click.option(
    "--checker-memory",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Most memory of the checker.",
)
@click.option(
    "--final",
    "final",
    metavar="PATTERN",
    help=(
        "The final answer in a text, by which majority votes: its last match, or the first group of"
        " it; of plan-tree an action.  [default: the last number, or the last line]"
    ),
)
@options.system
@options.model_options
@options.threads
@options.text_options(without=("temperature",))
@click.option(
    "--temperature",
    type=options.NumberRange(0),
    help=f"{OPTIONS['temperature'].help}  [default: the method's]",
)
@click.option("--show", is_flag=True, help="Draw the search as a tree on stderr.")
@options.as_json
@click.pass_context
def solve(
    command: click.Context,
    task: str | None,
    file: str | None,
    method: str,
    answers: int,
    rounds: int | None,
    checker: str | None,
    judge: Path | None,
    checker_seconds: float,
    checker_memory: int,
    final: str | None,
    system: str | None,
    names: "ModelNames",
    show: bool,
    as_json: bool,
    **decoding: Any,
) -> None:
    """Search for an answer to TASK: write several at once, judge them, and go on.

    Answers share the prompt's cache and each forward pass. The answer is printed, all that were
    looked at are told on stderr. The exit code is 1 where the checker does not pass the answer.
    Texts are the model's own, drafted losslessly; choosing among them is another aim.

    \b
    Examples:
      draftwood solve "Name a prime above 90." --checker "regex:\\b97\\b" --answers 8
      draftwood solve @question.txt --method majority --answers 16
      draftwood solve "Write JSON of a person." --checker person.json --method iad
      draftwood solve @question.txt --method lite-search --judge my-head
      draftwood solve @game.txt --method plan-tree --checker world.py --show
    """
    from draftwood_choices.search.checkers import checker_of, pattern_of

    way = search_method(method)
    check_methods([way], checker is not None, judge is not None)
    of_drafts = sorted(options.option_of(need) for need in names.given)
    of_draws = typed("temperature", "answers")
    require_taken(way, rounds is not None, final is not None, of_draws, of_drafts)
    if checker is None and (spare := typed("checker_seconds", "checker_memory")):
        raise ValueError(f"no checker is given; leave {' and '.join(spare)} out, or add --checker")
    checking = checker_of(checker, checker_seconds, checker_memory << 20) if checker else None
    pattern = None if final is None else pattern_of("--final", final)
    require_own_texts(decoding["rules"])
    if decoding["temperature"] is None:
        decoding["temperature"] = way.temperature
    names.require()
    generate.require_chat(system, decoding["raw"])
    written = generate.given_prompt(task, file)
    if written is None:
        written = generate.read_prompt("the task")
    lm = options.load(names, None, measure=False)
    from draftwood_choices.search.proposals import Proposer
    from draftwood_choices.search.view import say_proposals, say_tree

    proposer = Proposer(lm, checking, decoding, head=head_for(lm, judge))
    wanted = SearchOptions(answers, rounds or way.rounds, pattern)
    found = way.search(proposer, options.messages(lm, written, system), wanted)
    if checking is not None and found.best.judgement is None:
        found.best.judgement = proposer.judge(found.best.text)
    if not as_json:
        say_proposals(found, proposer.spent)
    if show:
        say_tree(found)
    click.echo(json.dumps(described(found, method, proposer)) if as_json else found.best.text)
    for note in found.notes:
        notes().print(note, markup=False, soft_wrap=True)
    for fault in dict.fromkeys(proposer.faults):
        count = proposer.faults.count(fault)
        notes().print(f"no score for {count} answers: {fault}", markup=False, soft_wrap=True)
    judged = found.best.judgement
    if checking is not None and not (judged is not None and judged.passed):
        whole = [each for each in found.proposals if each.is_whole]
        asked_of_all = all(each.judgement is not None for each in whole)
        told = "no answer passed" if asked_of_all else "the chosen answer did not pass"
        notes().print(f"{told} the checker", style="bold red")
        command.exit(NOT_PASSED)


def described(found: Solution, method: str, proposer: "Proposer") -> dict[str, object]:
    """A search in the form that ``--json`` prints."""
    places = {id(each): place for place, each in enumerate(found.proposals)}
    return {
        "method": method,
        **found.best.as_json(),
        "answers": [
            {**each.as_json(), "above": None if each.above is None else places[id(each.above)]}
            for each in found.proposals
        ],
        "details": found.details,
        "notes": [*found.notes],
        "faults": proposer.faults,
        "spent": proposer.spent.as_json(),
    }
