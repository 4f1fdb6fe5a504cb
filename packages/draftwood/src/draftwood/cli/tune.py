"""`draftwood tune`: measure what trees cost on this machine, and how fast methods are."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftwood.cli import options, phases
from draftwood.cli.costs import PROMPTS, Cost, corrected, write
from draftwood.cli.curve_view import draw_curve
from draftwood.cli.learnt import learner, learnt_options
from draftwood.cli.terminal import notes, output, progress, ruled_table

if TYPE_CHECKING:
    from draftwood.costs.calibration import Key
    from draftwood.costs.disturbance import MeasuredCurve
    from draftwood.drafters.resources import Need
    from draftwood.model_names import ModelNames
    from draftwood.text.language_model import LanguageModel

PRIOR_SHARE, CURVE_SHARE = 0.3, 0.4  # of the time, at most; the methods get the rest
NOT_STORED = 1  # exit code


def _names(
    context: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> list[str] | None:
    return options.method_names(context, parameter, ",".join(value)) if value else None


@click.command()
@click.option(
    "--method",
    "asked",
    multiple=True,
    callback=_names,
    metavar="A,B,C",
    help=(
        "Which to measure; repeatable.  [default: all that are lossless and lack no draft model"
        " and no trained head]"
    ),
)
@options.model_options
@click.option(
    "--threads",
    type=options.THREADS,
    help="CPU threads to run with.  [default: one for each core]",
)
@click.option(
    "--seconds",
    type=options.NumberRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Most time to measure.",
)
@click.option(
    "--phases",
    "sizes",
    is_flag=False,
    flag_value=phases.SIZES,
    callback=phases.sizes_of,
    metavar="[NODES,...]",
    help=(
        "Show instead where the time of passes over so many nodes goes, thread by thread, and what"
        f" of the machine's peaks they reach; nothing is stored.  [without numbers: {phases.SIZES}]"
    ),
)
@learnt_options
@options.as_json
@click.pass_context
def tune(
    context: click.Context,
    asked: list[str] | None,
    names: "ModelNames",
    threads: int | None,
    seconds: float,
    sizes: list[int] | None,
    as_json: bool,
) -> None:
    """Measure T(n), the time of one forward pass of the model over a tree of n nodes, and what
    each method's drafts cost.

    The curve is stored under $DRAFTWOOD_HOME for this model, dtype, device and number of threads.
    Methods that choose the size of their trees find it there; without it the first load makes a
    rougher one in at most 3 s. Best measured while the machine does nothing else.

    What the model says after single tokens, which drafts begin with, is completed too, each time
    by what is lacking.

    A curve that was measured beside other programs replaces no undisturbed one. The exit code is 1
    if none can be stored.

    \b
    Examples:
      draftwood tune
      draftwood tune --model TARGET --draft-model SMALLER --method rsd-s,auto
      draftwood tune --phases 1,8,16
    """
    from draftwood.native.threads import threads_set

    learn = learner(context, as_json)
    if learn is not None:
        if asked is not None or names.given or sizes is not None:
            raise ValueError(
                "what is learnt is the model's alone; leave --method, --draft-model, --datastore"
                " and --phases out"
            )
        names.require()
        with threads_set(threads):
            learn(options.load(names, "plain", measure=False), seconds)
        return
    if sizes is not None:
        if asked is not None or names.given:
            raise ValueError(
                "--phases measures the model alone; leave --method, --draft-model and --datastore"
                " out"
            )
        names.require()
        with threads_set(threads):
            lm = options.load(names)
            found = phases.measure(lm, sizes, seconds)
        if as_json:
            click.echo(json.dumps(found.as_json()))
        else:
            found.show()
        return
    chosen = _methods(asked, names.given)
    names.require()
    with threads_set(threads):
        report = _tune(options.load(names), chosen, asked is not None, seconds)
        report.store(_command(names, threads))
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        _print(report)
    if report.refusal:
        notes().print(f"not stored: {report.refusal}", markup=False, soft_wrap=True)
    if report.stored is None:
        context.exit(NOT_STORED)


def _command(names: "ModelNames", threads: int | None) -> str:
    """Command line that repeats the measurement."""
    given = {each.name: getattr(names, each.name) for each in fields(names) if each.metadata}
    words = [
        (f"--{name.replace('_', '-')}", str(value))
        for name, found in (given | {"threads": threads}).items()
        for value in (found if isinstance(found, tuple) else (found,))
        if value is not None
    ]
    return shlex.join(["draftwood", "tune", *(word for pair in words for word in pair)])


def _methods(names: list[str] | None, given: "frozenset[Need]") -> list[str]:
    """Choose the methods to measure, before any weights are loaded."""
    from draftwood import methods

    if names is None:
        fit = methods.lossless_names()
        return [name for name in fit if methods.lacking(name, given) is None]
    for name in names:
        if not methods.listing(name).lossless:
            raise ValueError(
                f"method {name!r} changes what the model would say, so tune does not run it; leave"
                " it out"
            )
    options.check_methods(names, given)
    return [name for name in names if name != "plain"]


@dataclass
class Report:
    """Results of ``draftwood tune``.

    Attributes:
        instructions: what the CPU multiplies matrices with; None where PyTorch does that.
        prior: tokens whose successors are known.
        costs: by method, plain decoding among them.
        skipped: methods that this model cannot be used with, and why.
        draft: folder of the draft model; None without one.
        stored: the file with the curve in use; None where none could be written.
        refusal: why this one is not stored; "" where it is.
    """

    model: str
    key: "Key"
    instructions: str | None
    measured: "MeasuredCurve"
    prior: int
    costs: dict[str, Cost]
    skipped: dict[str, str]
    draft: Path | None = None
    stored: Path | None = None
    refusal: str = ""

    @property
    def results(self) -> dict[str, dict[str, float]]:
        """By method, as far as the time allowed; plain decoding is the measure of the others."""
        plain = self.costs["plain"].stats
        done = {
            name: cost
            for name, cost in self.costs.items()
            if name != "plain" and cost.steps and plain.target_runs
        }
        curve = corrected(self.measured.curve, self.costs.values())
        return {name: cost.as_json(curve, plain) for name, cost in done.items()}

    @property
    def speed_ups(self) -> dict[str, dict[str, float]]:
        """Expected ones of the methods that draft with the draft model, by its folder."""
        from draftwood import methods

        drafted = {
            name: found["expected_speed_up"]
            for name, found in self.results.items()
            if "draft-model" in methods.spec(name).needs
        }
        return {} if self.draft is None else {str(self.draft.resolve()): drafted}

    def store(self, command: str) -> None:
        """Store the curve; one that was disturbed replaces no undisturbed one."""
        from draftwood.costs.calibration import is_known_well, known_speed_ups, store

        if self.measured.busy and is_known_well(self.key):
            self.stored = self.key.path
            self.refusal = (
                f"other programs kept the CPU busy, and {self.key.path} holds a curve that nothing"
                " disturbed, which stays; measure again when they are done"
            )
            return
        drafters = {name: found["draft_seconds_per_run"] for name, found in self.results.items()}
        known = known_speed_ups(self.key)
        own = {folder: {**known.get(folder, {}), **new} for folder, new in self.speed_ups.items()}
        try:
            measured = self.measured
            self.stored = store(
                *(self.key, measured.curve, command, drafters),
                busy=measured.busy,
                speed_ups={**known, **own},
            )
        except OSError as error:
            self.refusal = str(error)

    def as_json(self) -> dict[str, object]:
        key, curve = self.key, self.measured.curve
        return {
            **{
                "model": self.model,
                "dtype": key.dtype,
                "device": key.device,
                "threads": key.threads,
                "instructions": self.instructions,
            },
            "nodes": list(curve.nodes),
            "seconds": list(curve.seconds),
            "seconds_per_node_and_token": curve.per_context_token,
            "busy": self.measured.busy,
            "tokens_with_successors": self.prior,
            "methods": self.results,
            "skipped": self.skipped,
            "stored": None if self.stored is None else str(self.stored),
        }


def _tune(lm: "LanguageModel", names: Sequence[str], asked: bool, seconds: float) -> Report:
    from draftwood.costs.curve import FULL, ROUNDS, measure
    from draftwood.costs.disturbance import watched
    from draftwood.costs.following import Following
    from draftwood.loading.names import require_token_by_token

    require_token_by_token(lm.name, lm.calibration.folder)  # no method could use the curve
    end = time.perf_counter() + seconds
    prior = lm.prior.grow(seconds * PRIOR_SHARE)
    share = seconds * CURVE_SHARE if names else end - time.perf_counter()
    with progress() as bar:
        task = bar.add_task("forward passes", total=ROUNDS + 1)
        measured = watched(
            lm.model,
            lambda: measure(lm.model, FULL, seconds=share, advance=lambda: bar.advance(task)),
        )
        bar.update(task, completed=ROUNDS + 1)
        lm.calibration.use(Following(measured.curve))
        models, skipped = {"plain": lm}, {}
        for name in names:
            try:
                models[name] = lm.with_method(name)
            except ValueError as error:  # too few layers to skip, or another kind of drafter
                if asked:
                    raise
                if "mtp" in lm.model.abilities or not name.startswith("mtp"):  # few models have it
                    skipped[name] = str(error)
        costs = write(models, end, bar, task) if names else {"plain": Cost()}
    key = lm.calibration.key
    assert key is not None  # a model given by name has a folder
    draft = lm.models.draft_calibration
    folder = draft and draft.folder
    known = len(prior.ids)
    return Report(
        *(lm.name, key, options.instructions(lm), measured, known, costs, skipped), draft=folder
    )


def _print(report: Report) -> None:
    key, curve, console = report.key, report.measured.curve, output()
    threads = f"{key.threads} thread{'s' if key.threads != 1 else ''}"
    device = ", ".join(filter(None, (key.device, report.instructions)))
    title = f"{report.model}, {key.dtype}, {device}, {threads}"
    console.print("[bold]One forward pass[/]: ", end="")
    console.print(title, markup=False, soft_wrap=True)
    table = ruled_table(numbers=("nodes", "ms", "T(n)/T(1)"))
    for nodes, seconds in zip(curve.nodes, curve.seconds, strict=True):
        table.add_row(str(nodes), f"{seconds * 1e3:.2f}", f"{seconds / curve.seconds[0]:.2f}")
    console.print(table)
    console.print()
    console.print(draw_curve(curve, encoding=sys.stdout.encoding), soft_wrap=True)
    if curve.per_context_token:
        console.print(
            f"\nEvery 1000 tokens of context add {curve.per_context_token * 1e6:.2f} ms for each"
            " node.",
            soft_wrap=True,
        )
    if report.measured.busy and not report.refusal:
        console.print(
            "\nOther programs kept the CPU busy; measure again when they are done.", style="yellow"
        )
    console.print(f"\nWhat follows each of {report.prior:,} tokens is known.", soft_wrap=True)
    _print_methods(report)
    if not report.refusal:
        console.print(f"\nstored in {report.stored}", style="dim", soft_wrap=True, markup=False)


def _print_methods(report: Report) -> None:
    console, results = output(), report.results
    if results:
        console.print(f"\n[bold]What drafts cost and bring[/]: {len(PROMPTS)} short greedy texts")
        numbers = (
            *("drafting\nms/pass", "nodes\n/pass", "tokens\n/pass"),
            *("speed-up\nexpected", "speed-up\nseen"),
        )
        table = ruled_table(("method",), numbers)
        for name, cost in results.items():
            speed_ups = (f"{cost['expected_speed_up']:.2f}x", f"{cost['seen_speed_up']:.2f}x")
            drafting = f"{cost['draft_seconds_per_run'] * 1e3:.2f}"
            table.add_row(
                name,
                drafting,
                f"{cost['nodes_per_run']:.1f}",
                f"{cost['block_efficiency']:.2f}",
                *speed_ups,
            )
        console.print(table)
    late = [name for name in report.costs if name != "plain" and name not in results]
    if late:
        console.print(
            f"no time for: {', '.join(late)}; --seconds allows more",
            style="dim",
            markup=False,
            soft_wrap=True,
        )
    for name, reason in report.skipped.items():
        console.print(f"not run: {name} ({reason})", style="dim", markup=False, soft_wrap=True)
