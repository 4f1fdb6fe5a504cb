"""`draftwood bench show`, and what every command of `draftwood bench` prints."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes, output

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from draftwood_bench.plan.order import Progress
    from draftwood_bench.records.files import Record, RunInfo
    from draftwood_bench.report.sections import ProtocolSection

NOT_PROVEN = 1  # exit code
CLEARLY = (
    '"Clearly" means that the 95 % interval of the ratio, resampled over prompts in pairs, excludes'
    " 1."
)


@click.command(short_help="Tables of a finished or unfinished run.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--markdown", is_flag=True, help="Print the tables in Markdown, for pages.")
@click.option(
    "--orderings", is_flag=True, help="Of rsd: say which published orderings hold, in Markdown."
)
@click.option(
    "--clean",
    is_flag=True,
    help="Leave out records whose commit is unknown or does not hold what was measured.",
)
@options.as_json
@click.pass_context
def show(
    context: click.Context,
    folder: Path,
    markdown: bool,
    orderings: bool,
    clean: bool,
    as_json: bool,
) -> None:
    """Print the tables of the records in FOLDER, those of other packages' protocols too."""
    from draftwood_bench.records.files import read_clean, read_records, read_run
    from draftwood_bench.report.sections import sections

    if as_json and (markdown or orderings):
        raise click.UsageError("--json prints an object; leave --markdown and --orderings out")
    told, others = sections([folder])
    for section in told:
        if clean and not section.is_clean:
            click.echo(f"(left out: {folder}, without a clean commit)", err=as_json)
            if as_json:
                click.echo(json.dumps({"run": section.facts_told, "tables": []}))
        else:
            _tell_section(section, orderings, as_json, markdown)
    if not others:
        return
    run, records = read_clean(folder) if clean else (read_run(folder), read_records(folder))
    left_out = len(read_records(folder)) - len(records)
    if orderings:
        _print_orderings(records, run, folder)
    elif records or not left_out:
        _tell(context, records, run, folder, as_json, markdown)
    elif as_json:
        click.echo(json.dumps({"run": asdict(run), **_found(records, run)}))
    if left_out and not orderings:
        click.echo(f"(left out: {left_out} records without a clean commit)", err=as_json)


def typed() -> str:
    """The command as it was typed."""
    return shlex.join(["draftwood", *sys.argv[1:]])


def _bar() -> "Bar":
    """A progress bar on stderr with the time that is left; on a terminal only."""
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    hidden = not sys.stderr.isatty()
    return progress.Progress(*columns, console=notes(), transient=True, disable=hidden)


@contextmanager
def told_progress() -> Iterator["Progress"]:
    """Show the progress of a run on the terminal."""
    from draftwood_bench.plan.order import Progress

    with _bar() as bar:
        task = bar.add_task("loading", total=None)

        def begin(total: int, done: int) -> None:
            bar.reset(
                task, total=total - done, description=f"measuring, {done} of {total} were there"
            )

        def say(line: str) -> None:
            notes().print(line, markup=False, soft_wrap=True)

        yield Progress(begin, lambda: bar.advance(task), say)


def tell(context: click.Context, folder: Path, as_json: bool) -> None:
    """Print what a folder holds; the exit code is 1 where a method is not lossless as it claims."""
    from draftwood_bench.records.files import read_records, read_run

    _tell(context, read_records(folder), read_run(folder), folder, as_json)


def _tell(
    context: click.Context,
    records: list["Record"],
    run: "RunInfo",
    folder: Path,
    as_json: bool,
    markdown: bool = False,
) -> None:
    from draftwood_bench.records.notes import failures

    if not records:
        raise ValueError(f"{folder} holds no records yet")
    if as_json:
        click.echo(json.dumps({"run": asdict(run), **_found(records, run)}))
    elif markdown:
        _print_markdown(records, run)
    else:
        _print(records, run)
    if failures(records, run):
        context.exit(NOT_PROVEN)


def _print(records: list["Record"], run: "RunInfo") -> None:
    from draftwood_bench.records.notes import notes
    from draftwood_bench.report.tables import tables

    console = output(piped=1000)  # as wide as they need to be
    console.print(
        ", ".join(
            filter(
                None,
                (
                    run.model,
                    run.dtype,
                    run.hardware["device"],
                    f"{run.threads} thread{'s' * (run.threads != 1)}",
                ),
            )
        ),
        markup=False,
    )
    for found in tables(records, run):
        console.print(f"\n[bold]{found.title}[/]\n")
        console.print(found.rich())
    console.print()
    for line in notes(records, run):
        console.print(line, markup=False, soft_wrap=True)


def _found(records: list["Record"], run: "RunInfo") -> dict[str, Any]:
    """The figures of a run in plain types, and how many of its records are there."""
    from draftwood_bench.plan.measurements import MEASUREMENTS
    from draftwood_bench.records.extent import extent
    from draftwood_bench.records.figures import figures
    from draftwood_bench.records.statistics import summaries

    found, expected = extent(records, run)
    told: dict[str, Any] = {"finished": found, "expected": expected}
    if run.protocol in MEASUREMENTS:
        return {**told, "figures": figures(records)}
    return {
        **told,
        "summaries": [asdict(each, dict_factory=_bounded) for each in summaries(records, run)],
        "by_category": [
            asdict(each, dict_factory=_bounded)
            for each in summaries(records, run, by_category=True)
        ],
    }


def _bounded(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name, None for a bound that is not there, since JSON has no infinite numbers."""
    return {name: None if value in (-inf, inf) else value for name, value in fields}


def _print_markdown(records: list["Record"], run: "RunInfo") -> None:
    from draftwood_bench.records.notes import notes
    from draftwood_bench.report.tables import tables

    for table in tables(records, run):
        click.echo(f"\n{table.title}\n\n{table.markdown()}")
    click.echo()
    for note in notes(records, run):
        click.echo(f"{note}.\n")


def _tell_section(
    section: "ProtocolSection", orderings: bool, as_json: bool, markdown: bool
) -> None:
    """Print what a protocol of another package measured."""
    if orderings:
        raise ValueError(
            f"{section.names} holds a run of {section.protocol}; --orderings is for rsd"
        )
    if as_json:
        tables = [asdict(each) for each in section.tables]
        click.echo(json.dumps({"run": section.facts_told, "tables": tables}))
    elif markdown:
        click.echo(section.markdown())
    else:
        console = output(piped=1000)
        facts = ", ".join(f"{name} {each}" for name, each in section.facts_told.items())
        console.print(facts, markup=False, soft_wrap=True)
        for table in section.tables:
            console.print(f"\n[bold]{table.title}[/]\n")
            console.print(table.rich())
        console.print(f"\n{section.headline}", markup=False, soft_wrap=True)


def _print_orderings(records: list["Record"], run: "RunInfo", folder: Path) -> None:
    from draftwood_bench.report.orderings import orderings

    if run.protocol != "rsd":
        raise ValueError(f"{folder} holds a run of {run.protocol}; --orderings is for rsd")
    click.echo(f"{orderings(records).markdown()}\n\n{CLEARLY}")
