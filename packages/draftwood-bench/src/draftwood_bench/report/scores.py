"""Scores of texts beside plain decoding's, which show that nothing is lost."""

from collections.abc import Sequence

import numpy as np

from draftwood_bench.plan.configurations import PLAIN
from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import Estimate, difference, estimate
from draftwood_bench.report.table import Table

FEWEST = 5
"""Fewest prompts of a score, below which an interval is not to be trusted."""


def quality_table(records: Sequence[Record], temperature: float) -> Table:
    """Mean score by method over all its configurations, and its distance from plain decoding's.

    All exact methods draw from one distribution, so the texts of all trees count together. Scores
    of fewer than ``FEWEST`` prompts are left out.
    """
    drawn = [record for record in records if record.temperature == temperature]
    prompts: dict[str, set[str]] = {}
    for record in drawn:
        if record.quality:
            prompts.setdefault(record.quality["name"], set()).add(record.prompt)
    names = [name for name, asked in prompts.items() if len(asked) >= FEWEST]
    here = [each for each in drawn if each.quality and each.quality["name"] in names]
    rows = []
    for method in dict.fromkeys(record.method for record in here):
        cells = [method]
        for name in names:
            found, apart = _mean(here, method, name), beside_plain(here, method, name)
            cells += ["" if found is None else str(found), "" if apart is None else signed(apart)]
        rows.append(tuple(cells))
    heads = [head for name in names for head in (name, "over plain")]
    return Table(f"T = {temperature:g}: quality", ("method", *heads), tuple(rows))


def beside_plain(records: Sequence[Record], method: str, name: str) -> Estimate | None:
    """Mean difference of a method's score from plain decoding's on the same prompts.

    None without common prompts, and of plain decoding itself.
    """
    if method == PLAIN:
        return None
    own, plain = (_scores(records, each, name) for each in (method, PLAIN))
    common = [prompt for prompt in own if prompt in plain]
    apart = [np.mean(own[prompt]) - np.mean(plain[prompt]) for prompt in common]
    return difference(np.array(apart)) if common else None


def signed(found: Estimate) -> str:
    """A difference with its interval, each with its sign."""
    return found.written("+.2f")


def _mean(records: Sequence[Record], method: str, name: str) -> Estimate | None:
    def terms(record: Record) -> tuple[float, float] | None:
        known = record.quality if record.method == method else None
        return (known["value"], 1.0) if known and known["name"] == name else None

    return estimate(records, terms)


def _scores(records: Sequence[Record], method: str, name: str) -> dict[str, list[float]]:
    """Scores of a method by prompt."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record.method == method and record.quality and record.quality["name"] == name:
            found.setdefault(record.prompt, []).append(record.quality["value"])
    return found
