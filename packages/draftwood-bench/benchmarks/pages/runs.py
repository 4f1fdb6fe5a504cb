"""Runs in ``benchmarks/results``, as far as clean commits measured them."""

from functools import cache
from pathlib import Path

from benchmarks.common.json_lines import RESULTS
from draftwood.heads.places import shipped_folders
from draftwood.loading.weights import WeightsFolder
from draftwood_bench.plan.protocols import PROTOCOLS
from draftwood_bench.records.files import RUN, RunInfo, read_clean
from draftwood_bench.report.reading import MeasuredRun

STATED = "head"  # the run that stands for `auto`
MISSING = "(no record of a clean commit yet)"


def measured(name: str, results: Path = RESULTS) -> MeasuredRun | None:
    """Read a run; None where no clean commit measured it."""
    return _read(results / name)


@cache
def _read(folder: Path) -> MeasuredRun | None:
    if not (folder / RUN).is_file():
        return None
    run, records = read_clean(folder)
    return MeasuredRun(folder, run, records, {}) if records else None


def all_measured(*names: str) -> list[MeasuredRun]:
    """Read those of the named runs that are there."""
    return [found for name in names if (found := measured(name))]


def of_methods() -> tuple[list[MeasuredRun], dict[str, MeasuredRun]]:
    """List the runs that measured methods, and the ones that stand for a method by name."""
    names = [path.parent.name for path in sorted(RESULTS.glob(f"*/{RUN}"))]
    runs = [each for each in all_measured(*names) if each.run.protocol in PROTOCOLS]
    stated = measured(STATED)
    return runs, {} if stated is None else {"auto": stated}


def head_of(run: RunInfo) -> str | None:
    """Name of the trained head of a run, with its day where another one is shipped by now."""
    folder = shipped_folders().get(run.drafter or "")
    if folder is None or WeightsFolder(folder).digest == run.drafter_weights:
        return run.drafter
    return f"{run.drafter} of {run.started[:10]}"
