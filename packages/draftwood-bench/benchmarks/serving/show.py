"""Records of servers as tables in Markdown."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.common.json_lines import newest
from draftwood_bench.report.table import Table, number

Row = dict[str, Any]
COLUMNS = (
    ("tokens_per_second", "Tokens per second, all streams together", 1),
    ("first_token_ms", "Milliseconds to the first token, median of requests", 0),
    ("ms_per_output_token", "Milliseconds per further token of a stream, median of requests", 1),
)
ASKED: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "one-stream": ("ratio at least 0.9", lambda row: row["ratio"] >= 0.9),
    "sixteen-streams": ("ratio of auto at least 0.85", lambda row: row["auto_ratio"] >= 0.85),
    "sixteen-sharing": ("ratio of auto at least 0.8", lambda row: row["auto_ratio"] >= 0.8),
    "cached-prompt": ("cached under 100 ms", lambda row: row["cached_first_token_ms"] < 100),
    "cached-beside-streams": ("ratio at most 1.3", lambda row: row["ratio"] <= 1.3),
    "beside-long-prompt": ("99 % under 80 ms", lambda row: row["share_under_80_ms"] >= 0.99),
}

SAID = {  # of each figure; medians stand in the places of keys
    "one-stream": "**One stream over HTTP** keeps {ratio} of the speed in process.",
    "sixteen-streams": (
        "**Sixteen streams** reach {auto_ratio} of what sixteen rows behind one cache would give:"
        " each reads its own."
    ),
    "sixteen-sharing": (
        "**Sixteen streams that begin with the same 1,000 tokens** reach {auto_ratio} of it: what"
        " they share is read once."
    ),
    "cached-prompt": (
        "**A known prompt of {prompt_tokens} tokens** answers after {cached_first_token_ms} ms, an"
        " unknown one after {new_first_token_ms}."
    ),
    "cached-beside-streams": (
        "**Beside four streams** a known prompt answers after {busy_first_token_ms} ms, alone after"
        " {idle_first_token_ms}."
    ),
    "beside-long-prompt": (
        "**Beside a prompt of {prompt_tokens} tokens** streams wait {median_gap_ms} ms between"
        " chunks in the median; {share_under_80_ms} of the gaps are under 80 ms."
    ),
}
DIGITS = {"ratio": 2, "auto_ratio": 2, "share_under_80_ms": 3}


def tables(run: Sequence[Row], further: Sequence[Row]) -> str:
    """Everything that was measured, each cell a median of rounds with its lowest and highest."""
    further = newest(further, "model", "figure")
    parts = [where(run or further)] if run or further else ["Nothing was measured yet."]
    parts += [shown(by_streams(run, *column)) for column in COLUMNS if run]
    parts += [best_peer(run)] if run else []
    for name in dict.fromkeys(row["figure"] for row in further):
        parts.append(shown(_figure(name, [row for row in further if row["figure"] == name])))
    return "\n\n".join(parts)


def sentences(run: Sequence[Row], further: Sequence[Row]) -> list[str]:
    """Sentences for the figures that the records hold, each of its newest run."""
    further = newest(further, "model", "figure")
    speeds = {
        (row["system"], row["streams"], row["round"]): row["tokens_per_second"] for row in run
    }
    ratios: dict[int, list[float]] = {}
    for (name, streams, turn), speed in speeds.items():
        if name == "draftwood" and ("draftwood-plain", streams, turn) in speeds:
            plain = speeds["draftwood-plain", streams, turn]
            ratios.setdefault(streams, []).append(speed / plain)
    told = [
        f"**{streams} stream{'s' * (streams > 1)}:** `auto` writes {spread(found, 2)} times the"
        " tokens per second of plain decoding."
        for streams, found in sorted(ratios.items())
    ]
    for name, said in SAID.items():
        if rows := [row for row in further if row["figure"] == name]:
            numbers = [key for key, value in rows[0].items() if isinstance(value, int | float)]
            medians = {
                key: spread([row[key] for row in rows], DIGITS.get(key, 0)) for key in numbers
            }
            told.append(said.format(**medians))
    return told


def where(rows: Sequence[Row]) -> str:
    """The machine, and how busy it was."""
    last, loads = rows[-1], [row["load_average"] for row in rows]
    return (
        f"{last['model']}; {last['processor']}, {last['threads']} threads on {last['cpus']} CPUs;"
        f" {', '.join(last['packages'])}; load average {min(loads)} to {max(loads)}."
    )


def shown(table: Table) -> str:
    return f"{table.title}\n\n{table.markdown()}"


def spread(values: Sequence[float], digits: int) -> str:
    """A median, with the lowest and the highest where there are several."""
    told = number(median(values), digits)
    if min(values) == max(values):
        return told
    return f"{told} ({number(min(values), digits)} to {number(max(values), digits)})"


def by_streams(rows: Sequence[Row], column: str, title: str, digits: int) -> Table:
    """One row per server: a figure by the number of streams, medians of rounds."""
    counts = sorted({row["streams"] for row in rows})
    lines = []
    for name in dict.fromkeys(row["system"] for row in rows):
        own = [
            [row[column] for row in rows if (row["system"], row["streams"]) == (name, count)]
            for count in counts
        ]
        lines.append((name, *(spread(values, digits) if values else "" for values in own)))
    heads = tuple(f"{count} stream{'s' * (count > 1)}" for count in counts)
    return Table(title, ("server", *heads), tuple(lines))


def best_peer(rows: Sequence[Row]) -> str:
    """draftwood beside the fastest other server, by streams; rounds are compared one by one."""
    speeds = {
        (row["system"], row["streams"], row["round"]): row["tokens_per_second"] for row in rows
    }
    peers = {name for name, _, _ in speeds if not name.startswith("draftwood")}
    lines = []
    for count in sorted({count for _, count, _ in speeds}):
        by_peer = {
            peer: [
                speeds["draftwood", count, turn] / speed
                for (name, streams, turn), speed in speeds.items()
                if (name, streams) == (peer, count) and ("draftwood", count, turn) in speeds
            ]
            for peer in sorted(peers)
        }
        ratios = {peer: found for peer, found in by_peer.items() if found}
        if ratios:
            best = min(ratios, key=lambda peer: median(ratios[peer]))
            lines.append((str(count), best, spread(ratios[best], 2)))
    title = "draftwood's tokens per second over the best peer's (asked for one stream: 1.3)"
    if not lines:
        return "No round has both draftwood and another server."
    return shown(Table(title, ("streams", "best peer", "ratio"), tuple(lines)))


def _figure(name: str, rows: Sequence[Row]) -> Table:
    asked, good = ASKED[name]
    known = rows[0]
    since = list(known).index("round") + 1
    keys = list(known)[since : list(known).index("model")]
    head = ("round", *(key.replace("_", " ") for key in keys), asked)
    lines = tuple(
        (str(row["round"]), *(str(row[key]) for key in keys), "yes" if good(row) else "no")
        for row in rows
    )
    return Table(name.replace("-", " ").capitalize(), head, lines)
