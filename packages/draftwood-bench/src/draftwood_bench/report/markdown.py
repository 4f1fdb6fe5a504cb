"""The tables of a report in Markdown."""

from collections.abc import Sequence

from draftwood_bench.records.notes import notes
from draftwood_bench.report.figure_tables import FIGURE_TABLES
from draftwood_bench.report.overview import facts, overview
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.tables import tables, temperatures


def markdown(runs: Sequence[MeasuredRun]) -> str:
    """Facts, the overview and every table of each run."""
    return "\n".join(_run(measured) for measured in runs)


def _run(measured: MeasuredRun) -> str:
    run, records = measured.run, measured.records
    parts = [f"# {measured.folder.name}: {run.protocol} of {run.model}"]
    parts.append("\n".join(f"- {name}: {value}" for name, value in facts(run, records).items()))
    parts.append(f"```bash\n{run.command}\n```")
    shown = []
    if run.protocol not in FIGURE_TABLES:
        shown = [overview(records, run, temperature) for temperature in temperatures(records)]
    parts += [
        f"## {table.title}\n\n{table.markdown()}"
        for table in dict.fromkeys((*shown, *tables(records, run)))
    ]
    parts.append("\n".join(f"- {note}" for note in notes(records, run)))
    return "\n\n".join(parts) + "\n"
