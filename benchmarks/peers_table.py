"""From records to the table: speeds, how near they come to what memory allows, and ratios paired by prompt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from data import markdown

Key = tuple[str, str]  # system, mode
DRAWS = 2000


@dataclass(frozen=True)
class Row:
    """One system in one mode.

    Attributes:
        weights: how it holds them.
        prompts: answered.
        median_speed: tokens per second of decoding, the median over prompts.
        total_speed: all tokens over all seconds.
        block_efficiency: tokens per run of the model, pooled over prompts; None where the runs are not known.
        of_roofline: total speed over the speed at which one reading of the weights per token would fill the memory bus.
        ratios: to each of draftwood's entries: median of the per-prompt speed ratios, and its 95 % interval.
        same_text: to each plain system: share of prompts with exactly its tokens.
    """

    system: str
    mode: str
    weights: str
    prompts: int
    median_speed: float
    total_speed: float
    block_efficiency: float | None
    of_roofline: float
    ratios: dict[str, tuple[float, float, float]]
    same_text: dict[str, float]


def settings(records: Sequence[dict]) -> list[dict]:
    """The different settings among the records; each gets a table of its own."""
    names = ("model", "max_new_tokens", "threads", "ignore_eos")
    found = [{name: record[name] for name in names} for record in records]
    return [setting for place, setting in enumerate(found) if setting not in found[:place]]


def rows(records: Sequence[dict]) -> list[Row]:
    """A row for every system and mode with measurements, in the order of the records."""
    groups: dict[Key, list[dict]] = {}
    for record in records:
        if "absent" not in record:
            groups.setdefault((record["system"], record["mode"]), []).append(record)
    bandwidth = bandwidth_of(records)
    return [_row(key, groups, bandwidth) for key in groups]


def absent(records: Sequence[dict]) -> dict[Key, str]:
    """Systems that failed last, with the reason; one that answered after its failure does not count."""
    last = {(record["system"], record["mode"]): record.get("absent") for record in records}
    return {key: reason for key, reason in last.items() if reason}


def bandwidth_of(records: Sequence[dict]) -> float:
    """Bytes per second, the median over records, for it is measured before every prompt. 0 without any."""
    found = [record["machine"]["bandwidth_gb_per_s"] * 1e9 for record in records if "absent" not in record]
    return median(found) if found else 0.0


def speed(record: dict) -> float | None:
    """Tokens per second of decoding; None where the text ended with its first tokens."""
    tokens = len(record["token_ids"]) - record["first_tokens"]
    return tokens / record["decode_seconds"] if tokens > 0 and record["decode_seconds"] > 0 else None


def _row(key: Key, groups: dict[Key, list[dict]], bandwidth: float) -> Row:
    here = groups[key]
    timed = [record for record in here if speed(record)]
    tokens = sum(len(record["token_ids"]) - record["first_tokens"] for record in timed)
    total = tokens / sum(record["decode_seconds"] for record in timed) if timed else 0.0
    runs = [record["target_runs"] for record in timed]
    return Row(
        *key,
        weights=here[0]["weights"],
        prompts=len(here),
        median_speed=median(speed(record) or 0.0 for record in timed) if timed else 0.0,
        total_speed=total,
        block_efficiency=tokens / sum(runs) if runs and all(runs) else None,
        of_roofline=total * here[0]["weight_bytes"] / bandwidth,
        ratios={
            other[1]: found
            for other in groups
            if other[0] == "draftwood" and (found := paired_ratio(here, groups[other]))
        },
        same_text={
            f"{other[0]} {other[1]}": found
            for other in groups
            if other[1].startswith("plain") and (found := same_share(here, groups[other])) is not None
        },
    )


def paired_ratio(one: Sequence[dict], other: Sequence[dict]) -> tuple[float, float, float] | None:
    """Median over common prompts of the ratio of speeds, and its 95 % bootstrap interval; None without any."""
    speeds = [{record["question"]: speed(record) for record in records} for records in (one, other)]
    common = [question for question in speeds[0] if speeds[0][question] and speeds[1].get(question)]
    if not common:
        return None
    ratios = np.array([speeds[0][question] / speeds[1][question] for question in common])
    chosen = np.random.default_rng(0).integers(0, len(ratios), (DRAWS, len(ratios)))
    low, high = np.quantile(np.median(ratios[chosen], axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def same_share(one: Sequence[dict], other: Sequence[dict]) -> float | None:
    """Share of the common prompts for which both wrote the same tokens; None without any."""
    texts = {record["question"]: record["token_ids"] for record in other}
    common = [record for record in one if record["question"] in texts]
    return sum(r["token_ids"] == texts[r["question"]] for r in common) / len(common) if common else None


def speeds_table(found: Sequence[Row], entries: Sequence[str]) -> str:
    """Speeds in Markdown; ``entries`` are the modes of draftwood to compare with."""
    head = ["system", "mode", "median tokens/s", "total tokens/s", "tokens per run", "of the roofline"]
    head += [*(f"times draftwood {entry}" for entry in entries), "weights"]
    lines = []
    for row in found:
        efficiency = "" if row.block_efficiency is None else f"{row.block_efficiency:.2f}"
        ratios = [f"{r[0]:.2f} [{r[1]:.2f}, {r[2]:.2f}]" if (r := row.ratios.get(entry)) else "" for entry in entries]
        speeds = [f"{row.median_speed:.1f}", f"{row.total_speed:.1f}"]
        lines.append([row.system, row.mode, *speeds, efficiency, f"{row.of_roofline:.0%}", *ratios, row.weights])
    return markdown(head, lines)


def texts_table(found: Sequence[Row]) -> str:
    """Which texts are the same, in Markdown."""
    plain = list(dict.fromkeys(name for row in found for name in row.same_text))
    lines = [
        [row.system, row.mode, *(f"{row.same_text[name]:.0%}" if name in row.same_text else "" for name in plain)]
        for row in found
    ]
    return markdown(["system", "mode", *(f"same as {name}" for name in plain)], lines)


def as_json(row: Row) -> dict[str, object]:
    """A row for the JSON line."""
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(row).items()}
    ratios = {entry: [round(number, 4) for number in ratio] for entry, ratio in row.ratios.items()}
    return rounded | {"ratios": ratios, "same_text": {name: round(share, 4) for name, share in row.same_text.items()}}
