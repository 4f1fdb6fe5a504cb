"""Speeds of methods by name, as the package tells them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from draftwood import methods
from draftwood_bench.plan.configurations import Configuration
from draftwood_bench.records.files import Record, RunInfo
from draftwood_bench.report.overview import chosen, is_refused
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.tables import temperatures

DEFAULT = Configuration("").at
"""Place of records of a method with its own tree."""


def representative(
    name: str, runs: Sequence[MeasuredRun], stated: Mapping[str, MeasuredRun] | None = None
) -> MeasuredRun | None:
    """The run that a method is shown with; None where no run timed it."""
    measured = [run for run in runs if any(_times(name, record) for record in run.records)]
    if not measured:
        return None
    most = max(measured, key=lambda run: len({record.method for record in run.records}))
    return (stated or {}).get(name, most)


def _times(name: str, record: Record) -> bool:
    """True if a record holds seconds of a method with its own tree."""
    return (record.method, record.at) == (name, DEFAULT) and record.seconds_end_to_end is not None


def measured_speeds(
    runs: Sequence[MeasuredRun], stated: Mapping[str, MeasuredRun] | None = None
) -> dict[str, list[methods.MeasuredSpeed]]:
    """Speeds of the methods that were timed with their own trees.

    A method stands with the run that is stated for it, so that pages and the package say the same;
    else with the run that measured most methods beside it.
    """
    shown = {name: representative(name, runs, stated) for name in methods.known()}
    found = {
        name: list(_speeds(name, measured))
        for name, measured in shown.items()
        if measured is not None and name != "plain"
    }
    return {name: speeds for name, speeds in found.items() if speeds}


def _draft(run: RunInfo) -> str | None:
    """Name of what drafted."""
    found = run.drafter or run.draft_model
    return None if found is None else Path(found).name


def _speeds(name: str, measured: MeasuredRun) -> Iterator[methods.MeasuredSpeed]:
    run = measured.run
    for temperature in temperatures(measured.records):
        for each in chosen(measured.records, run, temperature):
            gain, whole = each.speed_up, each.speed_up_end_to_end
            if each.method != name or each.at != DEFAULT or is_refused(each):
                continue
            if gain is None or whole is None or gain.prompts < 2:
                continue
            yield methods.MeasuredSpeed(
                temperature=temperature,
                decoding=round(gain.value, 2),
                interval=(round(gain.low, 2), round(gain.high, 2)),
                end_to_end=round(whole.value, 2),
                model=run.model,
                dtype=run.dtype,
                prompts=each.prompts,
                source=run.prompts["source"],
                machine=f"{run.threads} cores of {run.hardware['device']}",
                draft=_draft(run),
            )
