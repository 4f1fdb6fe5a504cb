"""The table of methods with what runs found, for README."""

from collections.abc import Iterator, Mapping, Sequence

from draftwood.methods.measured import MeasuredSpeed
from draftwood_bench.records.statistics import Estimate, Summary
from draftwood_bench.report.best_shapes import held_out
from draftwood_bench.report.overview import chosen, is_refused
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.table import Table
from draftwood_bench.report.tables import identity, speed_up, temperatures

HEAD = (
    *("method", "what it does", "T", "tokens per pass [95 %]", "x plain, whole requests [95 %]"),
    *("x plain, decoding alone [95 %]", "same text", "measured on"),
)


def methods_table(
    runs: Sequence[MeasuredRun], stated: Mapping[str, MeasuredRun] | None = None
) -> Table:
    """One row per method and setting, in the order of the methods.

    Those that no run measured are left out. A method is shown with the run that is stated for it,
    so that a table and sentences beside it say the same; else with the run that measured most
    methods beside it. It stands at each temperature; of a run that timed nothing, at the highest.
    Plain decoding is 1 everywhere and has no row.
    """
    from draftwood import methods

    rows = []
    for name, recipe in methods.known().items():
        measured = None if name == "plain" else representative(name, runs, stated)
        if measured is None:
            continue
        found = _rows(name, measured)
        summaries = [recipe.summary, *[""] * (len(found) - 1)]
        rows += [
            (f"`{name}`", summary, *row) for summary, row in zip(summaries, found, strict=True)
        ]
    return Table("methods", HEAD, tuple(rows))


def representative(
    name: str, runs: Sequence[MeasuredRun], stated: Mapping[str, MeasuredRun] | None = None
) -> MeasuredRun | None:
    """The run that a method is shown with; None where no run measured it."""
    measured = [run for run in runs if any(record.method == name for record in run.records)]
    if not measured:
        return None
    most = max(measured, key=lambda run: len({record.method for record in run.records}))
    return (stated or {}).get(name, most)


def measured_speeds(
    runs: Sequence[MeasuredRun], stated: Mapping[str, MeasuredRun] | None = None
) -> dict[str, list[MeasuredSpeed]]:
    """Measured speeds by method: those of the table that were timed."""
    from draftwood.methods import known

    shown = {name: representative(name, runs, stated) for name in known()}
    found = {
        name: list(_speeds(name, measured))
        for name, measured in shown.items()
        if measured is not None and name != "plain"
    }
    return {name: speeds for name, speeds in found.items() if speeds}


def _speeds(name: str, measured: MeasuredRun) -> Iterator[MeasuredSpeed]:
    run = measured.run
    for temperature in temperatures(measured.records):
        for each in chosen(measured.records, run, temperature):
            gain, whole = each.speed_up, each.speed_up_end_to_end
            if each.method != name or is_refused(each) or gain is None or whole is None:
                continue
            yield MeasuredSpeed(
                temperature=temperature,
                decoding=round(gain.value, 2),
                interval=(round(gain.low, 2), round(gain.high, 2)),
                end_to_end=round(whole.value, 2),
                model=run.model,
                dtype=run.dtype,
                prompts=each.prompts,
                source=run.prompts["source"],
                machine=f"{run.threads} cores of {run.hardware['device']}",
            )


def unmeasured(runs: Sequence[MeasuredRun]) -> list[str]:
    """Name the methods that no run measured."""
    from draftwood.methods import known

    measured = {record.method for run in runs for record in run.records}
    return [name for name in known() if name not in measured]


def _rows(name: str, measured: MeasuredRun) -> list[tuple[str, ...]]:
    timed = any(record.seconds_end_to_end for record in measured.records)
    kinds = temperatures(measured.records) if timed else temperatures(measured.records)[-1:]
    return [
        (f"{each.temperature:g}", *_figures(each, measured), _place(each, measured))
        for temperature in kinds
        for each in chosen(measured.records, measured.run, temperature)
        if each.method == name
    ]


def _figures(each: Summary, measured: MeasuredRun) -> tuple[str, str, str, str]:
    def gain(estimate: Estimate | None) -> str:
        return "none: texts differ" if is_refused(each) else speed_up(each, estimate)

    efficiency = "" if each.block_efficiency is None else str(each.block_efficiency)
    here = [record for record in measured.records if record.temperature == each.temperature]
    if other := held_out(here, each.method, each.at):
        efficiency += f"; held out {other.value:.2f}"
    same = identity(each) if each.same is not None else ""
    return (efficiency, gain(each.speed_up_end_to_end), gain(each.speed_up), same)


def _place(each: Summary, measured: MeasuredRun) -> str:
    run = measured.run
    draft = "".join(f" + {name}" for name in (run.draft_model, run.drafter) if name is not None)
    at = "" if each.at == "default" else f", {each.at}"
    commits = f", at {', '.join(run.dirty)}" if run.dirty else ""
    return (
        f"{run.model}{draft}, {run.dtype}{at}, {each.prompts} prompts of"
        f" {run.prompts['source']}{commits}"
    )
