"""Figures of measurements without prompts: one per cell, its records pooled."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from draftwood_bench.records.files import Record

TOLD = ("model", "method", "at", "shape", "temperature", "prompt_tokens", "nodes")


def figures(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per configuration, with its pooled stats.

    Means over the windows of a text count every token once; of perplexities the mean is geometric.
    """
    groups: dict[tuple[str, float, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.cell, record.temperature, record.prompt_tokens), []).append(
            record
        )
    return [
        {name: asdict(group[0])[name] for name in TOLD} | _pooled([each.stats for each in group])
        for group in groups.values()
    ]


def _pooled(stats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(stats) == 1:
        return stats[0]
    tokens = sum(each["tokens"] for each in stats)

    def mean(name: str) -> float:
        return sum(each["tokens"] * each[name] for each in stats) / tokens

    loss = sum(each["tokens"] * math.log(each["perplexity"]) for each in stats) / tokens
    means = {name: mean(name) for name in ("divergence", "same_likeliest")}
    return {"tokens": tokens, "perplexity": math.exp(loss), **means}
