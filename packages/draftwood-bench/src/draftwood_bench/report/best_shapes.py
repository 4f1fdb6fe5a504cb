"""Choose the best of several shapes at one budget, and judge the choice on other prompts."""

from collections.abc import Sequence

from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import Estimate, block_efficiency, per_run, pooled


def best_shape(records: Sequence[Record], method: str, at: str) -> list[Record] | None:
    """The records of the shape with the greatest block efficiency.

    None where nothing is measured.
    """
    shapes: dict[str, list[Record]] = {}
    for record in records:
        if (record.method, record.at) == (method, at):
            shapes.setdefault(record.cell, []).append(record)
    known = {cell: found for cell, group in shapes.items() if (found := pooled(group, per_run))}
    return shapes[max(known, key=lambda cell: known[cell])] if known else None


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
