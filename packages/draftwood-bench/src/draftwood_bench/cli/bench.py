"""`draftwood bench`: measure methods by a protocol, and show the tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from draftwood.cli import options
from draftwood.cli.groups import OpenGroup
from draftwood_bench.cli.measurements import cost, gguf, overhead, quality
from draftwood_bench.cli.options import (
    PROOF,
    SETTINGS,
    methods_option,
    peers_option,
    run_options,
    tree_option,
)
from draftwood_bench.cli.show import show, tell, told_progress, typed

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood_bench.plan.protocols import Protocol, Rsd, Settings
    from draftwood_bench.records.files import RunInfo

BUDGETS = "6,10,14,21,30"
PROTOCOLS = "draftwood.protocols"
"""Entry points of packages that name protocols: click's commands, one each."""


@click.group(cls=OpenGroup, entries=PROTOCOLS)
def bench() -> None:
    """Measure methods on prompts, plain decoding among them, and say what may be concluded.

    overhead, cost, quality and gguf measure the library, its forward passes, stored formats, and
    other systems on the same file.

    Records are appended to a folder as they are made; a run that was stopped goes on where it was.
    The exit code is 1 if a method that claims to be lossless is not.

    \b
    Examples:
      draftwood bench spec-bench --methods auto,lookup --output runs/first
      draftwood bench rsd --model tinyllama-1.1b --draft-model stories-15m --output runs/rsd
      draftwood bench show runs/first
    """


@bench.command(
    "spec-bench", short_help="Methods by category of prompt: speed, tokens per pass, speed-up."
)
@methods_option("auto", "Plain is always run too.")
@tree_option
@run_options("0", 128)
@peers_option
@click.pass_context
def spec_bench(
    context: click.Context, methods: tuple[str, ...], tree: str | None, **given: Any
) -> None:
    """Methods by category of prompt: block efficiency, tokens per second, speed-up over plain
    decoding.

    All methods answer a prompt before any sees the next one, in changing order. --tree is for those
    of the methods that can draw it.
    """
    _check(methods, given, tree)
    from draftwood_bench.plan.protocols import SpecBench

    _run(context, lambda settings: SpecBench(methods, settings, tree), given)


@bench.command(short_help="Fixed draft lengths and fixed budgets, the best shape of each.")
@methods_option(
    "speculative,spectr,specinfer,rsd-c,rsd-s",
    "Also block, rsd-c + greedy-plus-one, spectr + traversal, specinfer + traversal,"
    " rsd-c + traversal, rsd-s + traversal.",
)
@click.option(
    "--lengths",
    default="2,3,4,5",
    show_default=True,
    callback=options.numbers(int, "2,3,4,5"),
    help="Levels of the trees.",
)
@click.option(
    "--budgets",
    default=BUDGETS,
    show_default=True,
    callback=options.numbers(int, BUDGETS),
    help="Drafted tokens, of these and 4.",
)
@click.option(
    "--breadth",
    type=int,
    default=3,
    show_default=True,
    help="Siblings at the root at fixed length.",
)
@click.option(
    "--thrifty",
    is_flag=True,
    help="Block efficiency alone, many texts in one pass; nothing is timed.",
)
@click.option(
    "--timed-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=(
        "Folder of a thrifty run: time the lengths and shapes that were best in it, on other"
        " prompts than its own."
    ),
)
@run_options("1", 64)
@click.pass_context
def rsd(
    context: click.Context,
    methods: tuple[str, ...],
    lengths: tuple[int, ...],
    budgets: tuple[int, ...],
    breadth: int,
    thrifty: bool,
    timed_from: Path | None,
    **given: Any,
) -> None:
    """The protocol of Recursive Speculative Decoding (Jeon et al. 2024, arXiv:2402.14160).

    Methods that draft with a model, at fixed draft lengths and at fixed target budgets with several
    shapes each, of which the best counts: block efficiency, memory-bound speed-up, token rate,
    quality.

    \b
    Example:
      draftwood bench rsd --model tinyllama-1.1b --draft-model stories-15m --output runs/rsd
      draftwood bench rsd --draft-model smollm2-135m-lm --thrifty --output runs/all
      draftwood bench rsd --draft-model smollm2-135m-lm --timed-from runs/all --output runs/timed
    """
    _check(methods, given)
    if thrifty and timed_from is not None:
        raise ValueError("--thrifty times nothing; leave it out beside --timed-from")
    if thrifty:
        _refuse_proof(context, "rsd with --thrifty")
    from draftwood_bench.plan.protocols import Rsd

    head = given["names"].opened().drafts.head
    kind = None if head is None else head.config.kind
    levels = given["names"].drafts.levels

    def make(settings: "Settings") -> Rsd:
        whole = Rsd(*(methods, lengths, budgets, breadth, thrifty, settings, kind), levels=levels)
        return whole if timed_from is None else _timed_from(timed_from, whole, given["names"])

    _run(context, make, given)


def _timed_from(folder: Path, whole: "Rsd", names: "ModelNames") -> "Rsd":
    """Narrow a protocol to what was best in the records of a thrifty run, on other prompts.

    Raises:
        ValueError: for records of other models, and where none of them is of the protocol.
    """
    from draftwood_bench.plan.models import Models
    from draftwood_bench.records.files import read_records, read_run
    from draftwood_bench.report.best_shapes import worth_timing

    before, models = read_run(folder), Models(**asdict(names))
    there = (before.model, before.draft_model, before.drafter)
    asked = (models.model, models.recorded["draft_model"], models.recorded["drafter"])
    if there != asked:
        told = (" + ".join(filter(None, each)) for each in (there, asked))
        raise ValueError("{} holds records of {}, not of {}".format(folder, *told))
    keys = {cell.key for cell in whole.cells()}
    records = read_records(folder)
    here = [
        record
        for record in records
        if record.cell in keys and record.temperature in whole.settings.temperatures
    ]
    chosen = worth_timing(here, before.draft_ratio)
    if not chosen:
        raise ValueError(f"{folder} has no records of these methods, sizes and temperatures")
    seen = dict.fromkeys(record.prompt for record in records)
    settings = replace(whole.settings, leave_out=_asked_before(before, seen, whole.settings))
    return replace(whole, chosen=tuple(chosen), settings=settings)


def _asked_before(before: "RunInfo", seen: Iterable[str], settings: "Settings") -> tuple[str, ...]:
    """Ids of prompts whose texts a run has asked, in the order of its own ids, ``seen``."""
    from draftwood_bench.plan.prompts import load_prompts
    from draftwood_bench.plan.protocols import from_json

    known = from_json(before.options).settings
    chosen = (known.per_category, known.categories, known.limit, known.leave_out)
    there = {prompt.id: prompt for prompt in load_prompts(known.prompts, *chosen).prompts}
    ids: dict[tuple, list[str]] = {}
    for prompt in load_prompts(settings.prompts).prompts:
        ids.setdefault((prompt.before, prompt.turns), []).append(prompt.id)
    asked = [there[id] for id in seen if id in there]
    return tuple(id for prompt in asked for id in ids.get((prompt.before, prompt.turns), ()))


@bench.command(short_help="Another drafter, shape or verifier, everything else as it was.")
@methods_option("rsd-s", "The methods to start from.")
@click.option(
    "--vary",
    type=click.Choice(("drafter", "shape", "verifier", "pair")),
    default="verifier",
    show_default=True,
    help="What changes; pair: every shape with every verifier that is exact for it.",
)
@click.option(
    "--budget",
    type=int,
    default=14,
    show_default=True,
    help=f"Drafted tokens of every shape, of 4,{BUDGETS}.",
)
@run_options("0,1", 128)
@peers_option
@click.pass_context
def axes(
    context: click.Context, methods: tuple[str, ...], vary: Any, budget: int, **given: Any
) -> None:
    """Vary one question at a time: where draft tokens come from, which deserve a place, or which
    are kept; or take every pair of the last two.

    Verifiers, and how siblings are drawn, differ above temperature 0 alone: greedy, one token has
    all the probability.

    \b
    Examples:
      draftwood bench axes --methods lookup --vary drafter --output runs/drafters
      draftwood bench axes --model tinyllama-1.1b --draft-model stories-15m --output runs/verifiers
    """
    _check(methods, given)
    from draftwood_bench.plan.protocols import Axes

    _run(context, lambda settings: Axes(methods, vary, budget, settings), given)


@bench.command(short_help="Many requests at once: batches, and requests that arrive at random.")
@methods_option("auto", "Plain is always run too.")
@tree_option
@click.option(
    "--batches",
    default="1,2,4,8",
    show_default=True,
    callback=options.numbers(int, "1,2,4,8"),
    help="Requests at a time.",
)
@click.option(
    "--rates",
    default="",
    callback=options.numbers(float, "0.5,1,2"),
    help="Requests per second, arriving at random.",
)
@click.option(
    "--most", type=int, default=8, show_default=True, help="Most of these under way at a time."
)
@run_options("0", 128)
@click.pass_context
def load(
    context: click.Context,
    methods: tuple[str, ...],
    tree: str | None,
    batches: tuple[int, ...],
    rates: tuple[float, ...],
    most: int,
    **given: Any,
) -> None:
    """Throughput and waiting times with many requests at once, in batches or arriving at random."""
    _check(methods, given, tree)
    _refuse_proof(context, "load")
    if not rates and context.get_parameter_source("most") is ParameterSource.COMMANDLINE:
        raise ValueError("--most bounds arrivals at random, so it needs --rates; add them")
    from draftwood_bench.plan.protocols import Load

    _run(context, lambda settings: Load(methods, batches, rates, most, settings, tree), given)


def _check(methods: Sequence[str], given: dict[str, Any], tree: str | None = None) -> None:
    """Refuse unknown names and files that are not there before anything is imported for them."""
    from draftwood import methods as known
    from draftwood_bench.plan.prompts import load_prompts

    found = [known.listing(name.partition(" + ")[0]).name for name in methods]
    if compared := [name for name in found if name != "plain"]:
        known.require(compared, given["names"].given)
        given["names"].drafts.require_for(map(known.listing, compared))
    known.require_tree(compared or found, tree, given["names"].drafts.levels)
    given["names"].require()
    load_prompts(given["prompts"], given["per_category"], given["categories"], given["limit"])


def _refuse_proof(context: click.Context, name: str) -> None:
    """Refuse options of tests that a run does not make."""
    for option in PROOF:
        if context.get_parameter_source(option) is not ParameterSource.DEFAULT:
            raise ValueError(
                f"{name} tests no distribution and computes no bound; leave"
                f" --{option.replace('_', '-')} out"
            )


def _run(context: click.Context, make: Callable[[Any], "Protocol"], given: dict[str, Any]) -> None:
    from draftwood_bench.plan.models import Models
    from draftwood_bench.plan.order import Order
    from draftwood_bench.plan.protocols import Settings
    from draftwood_bench.run.runner import run

    settings = Settings(
        temperatures=given["temperatures"],
        categories=tuple(given["categories"]),
        exact=not given["inexact"],
        **{name: given[name] for name in SETTINGS},
    )
    models = Models(**asdict(given["names"]), threads=given["threads"])
    order = Order(
        make(settings),
        models,
        given["output"],
        given.get("peers", ()),
        given["workers"],
        given["ray_address"],
        typed(),
    )
    with told_progress() as progress:
        run(order, progress)
    tell(context, order.output, given["as_json"])


for command in (overhead, cost, quality, gguf, show):
    bench.add_command(command)
