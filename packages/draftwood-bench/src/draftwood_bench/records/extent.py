"""Records of a run that are there, beside those that its options ask for."""

from collections.abc import Sequence

from draftwood_bench.plan.measurements import MEASUREMENTS
from draftwood_bench.plan.protocols import from_json, measurement
from draftwood_bench.records.files import Record, RunInfo


def extent(records: Sequence[Record], run: RunInfo) -> tuple[int, int | None]:
    """Count the records that a run has, and those that its options ask for; of texts the first
    turns, since later ones may be left out, and no peer's.

    The second is None where an earlier version wrote options or records that these cannot tell.
    """
    own = [record for record in records if not record.is_peer]
    found = len({record.key for record in own if record.turn == 0})
    try:
        if run.protocol in MEASUREMENTS:
            return found, measurement(run.options).count(len(run.model.split(", ")))
        protocol = from_json(run.options)
        cells = {cell.key for cell in protocol.cells()}
    except (ValueError, TypeError):
        return found, None
    if not cells.issuperset(record.cell for record in own):
        return found, None
    settings = protocol.settings
    times = len(set(settings.temperatures)) * settings.rounds
    return found, len(cells) * times * run.prompts["count"]


def unfinished(records: Sequence[Record], run: RunInfo) -> str | None:
    """Records that a run has and lacks, in a line; None where it is finished."""
    found, expected = extent(records, run)
    if expected is not None:
        what = "records" if run.protocol in MEASUREMENTS else "records of first turns"
        told = f"has {found} of {expected} {what}"
        return f"the run is not finished: it {told}" if found < expected else None
    answered, count = len({record.prompt for record in records}), run.prompts.get("count", 0)
    told = f"has come to {answered} of {count} prompts"
    return f"the run is not finished: it {told}" if answered < count else None
