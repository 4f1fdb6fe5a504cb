"""Speeds of methods that were measured, from ``measured.json``, which `make docs` writes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources

FILE = "measured.json"


@dataclass(frozen=True)
class MeasuredSpeed:
    """The speed of a method at one temperature, over plain decoding on the same prompts.

    Attributes:
        temperature: 0 is greedy decoding.
        decoding: times as fast as plain decoding, decoding alone: the median over prompts.
        interval: of 95 %, lower and upper end.
        end_to_end: the same of whole requests, prompts included.
        model: that wrote, and ``dtype``: how its weights were multiplied.
        prompts: answered, of ``source``.
        machine: it ran on.
        draft: draft model or trained head, where one drafted.
    """

    temperature: float
    decoding: float
    interval: tuple[float, float]
    end_to_end: float
    model: str
    dtype: str
    prompts: int
    source: str
    machine: str
    draft: str | None = None


def places(speeds: Iterable[MeasuredSpeed]) -> list[str]:
    """Models and prompts of measurements, each pair once, and all machines that they ran on."""
    found: dict[tuple[str, str], list[MeasuredSpeed]] = {}
    for each in speeds:
        found.setdefault((each.model, each.source), []).append(each)
    told = []
    for (model, source), own in found.items():
        drafts = {each.draft for each in own}
        beside = " with a head where one drafts" if len(drafts) > 1 else ""
        if len(drafts) == 1 and None not in drafts:
            beside = f" with {own[0].draft}"
        counts = sorted({each.prompts for each in own})
        prompts = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        machines = " or ".join(dict.fromkeys(each.machine for each in own))
        told.append(f"{model}{beside}, {prompts} prompts of {source}, {machines}")
    return told


@cache
def measured_speeds() -> Mapping[str, tuple[MeasuredSpeed, ...]]:
    """Measured speeds of draftwood's own methods, by name; methods without figures are absent."""
    text = resources.files("draftwood.methods").joinpath(FILE).read_text(encoding="utf-8")
    return {
        name: tuple(
            MeasuredSpeed(**{**row, "interval": (row["interval"][0], row["interval"][1])})
            for row in rows
        )
        for name, rows in json.loads(text).items()
    }


def as_text(speeds: Mapping[str, Sequence[MeasuredSpeed]]) -> str:
    """The content of the file."""
    rows = {name: [asdict(each) for each in found] for name, found in speeds.items()}
    return json.dumps(rows, indent=1) + "\n"


def pays(name: str) -> bool:
    """True if a method was as fast as plain decoding where it was measured, at some temperature."""
    return any(each.decoding >= 1 for each in measured_speeds().get(name, ()))
