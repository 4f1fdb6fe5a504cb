"""Choose the best of several shapes at one budget, and judge the choice on other prompts."""

from collections.abc import Sequence

from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import Estimate, block_efficiency, mbsu, per_run, pooled


def best_shape(records: Sequence[Record], method: str, at: str) -> list[Record] | None:
    """The records of the shape with the greatest block efficiency.

    None where nothing is measured.
    """
    here = [record for record in records if (record.method, record.at) == (method, at)]
    return fastest(here, 0.0)


def held_out(records: Sequence[Record], method: str, at: str) -> Estimate | None:
    """Block efficiency where the shape is chosen on other prompts than those that count.

    None without a choice. The prompts are halved, every other one in the order of the records. Each
    half counts with the shape that was best on the other.
    """
    here = [record for record in records if (record.method, record.at) == (method, at)]
    if len({record.cell for record in here}) < 2:
        return None
    prompts = list(dict.fromkeys(record.prompt for record in here))
    halves = [[record for record in here if record.prompt in prompts[side::2]] for side in (0, 1)]
    counted: list[Record] = []
    for mine, other in (halves, halves[::-1]):
        if best := best_shape(other, method, at):
            counted += [record for record in mine if record.cell == best[0].cell]
    return block_efficiency(counted)


def worth_timing(records: Sequence[Record], draft_ratio: float | None) -> list[str]:
    """Keys of the configurations whose seconds count, for each method and temperature.

    These are the best length, by memory-bound speed-up, and at each budget the best shape.

    Args:
        records: of a thrifty run.
        draft_ratio: size of the draft model over the target's; None compares block efficiency.
    """
    found: list[str] = []
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        groups.setdefault((record.method, record.temperature), []).append(record)
    for (method, _), group in groups.items():
        budgets = [at for at in dict.fromkeys(r.at for r in group) if at.startswith("budget")]
        lengths = [record for record in group if record.at.startswith("length")]
        best = [fastest(lengths, draft_ratio or 0.0)]
        best += [best_shape(group, method, at) for at in budgets]
        found += [shape[0].cell for shape in best if shape]
    return list(dict.fromkeys(found))


def fastest(records: Sequence[Record], draft_ratio: float) -> list[Record] | None:
    """The records of the configuration with the greatest memory-bound speed-up.

    None where nothing is measured.

    Args:
        draft_ratio: size of the draft model over the target's; at 0 block efficiency counts.
    """
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(record.cell, []).append(record)
    known = {cell: found for cell, group in cells.items() if (found := pooled(group, per_run))}

    def speed(cell: str) -> float:
        return mbsu(known[cell], cells[cell][0].draft_steps, draft_ratio) or 0.0

    return cells[max(known, key=speed)] if known else None
