"""Speed over plain decoding: the table in front, methods of a run, and categories of prompts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.json_lines import RESULTS
from benchmarks.pages.runs import MISSING, all_measured, head_of, measured
from draftwood_bench.records.figures import figures
from draftwood_bench.records.statistics import Summary, summaries
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.table import Table, number
from draftwood_bench.report.tables import (
    identity,
    name_of,
    speed_up,
    temperatures,
    tokens_per_run,
)

FRONT = (  # temperature, and runs that may fill its row: the first that measured `auto`
    (0.0, ("head", "methods")),
    (1.0, ("head", "methods")),
    (0.0, ("peers",)),
    (0.0, ("tinyllama",)),
    (1.0, ("tinyllama",)),
)
FRONT_HEAD = (
    *("model", "text (prompts)", "plain", "`auto`", "best peer", "`auto` over plain [95 %]"),
    "over the peer",
)
HEAD = (
    *("method", "T", "n", "tokens/s", "x plain, whole requests [95 %]"),
    *("x plain, decoding [95 %]", "tokens per pass", "same texts"),
)


def front(results: Path = RESULTS) -> str:
    """README's table: tokens per second of whole requests, ours and the best peer's."""
    rows = [
        row
        for temperature, names in FRONT
        if (row := next(_front_rows(names, temperature, results), None))
    ]
    rows += [row for row in [_same_file_row("gguf-gemma", results)] if row]
    return Table("", FRONT_HEAD, tuple(rows)).markdown() if rows else MISSING


def _front_rows(
    names: Sequence[str], temperature: float, results: Path
) -> Iterator[tuple[str, ...]]:
    for name in names:
        found = measured(name, results)
        row = _front_row(found, temperature) if found else None
        if row:
            yield row


def _front_row(found: MeasuredRun, temperature: float) -> tuple[str, ...] | None:
    """One model at one temperature; None without speeds of `auto` and plain decoding."""
    known = {each.method: each for each in summaries_at(found, temperature)}
    plain, own = known.get("plain"), known.get("auto")
    if plain is None or own is None or not plain.end_to_end or not own.end_to_end:
        return None
    run = found.run
    head = head_of(run)
    day = head.removeprefix(run.drafter or "") if head else ""
    model = f"{run.model}, {run.dtype}" + (f" + head{day}" if head else "")
    best = fastest_peer(summaries_at(found, temperature))
    theirs = best.end_to_end if best else None
    drawn = f"T = {temperature:g}" if temperature else "greedy"
    return (
        model,
        f"{drawn} ({run.prompts['count']})",
        number(plain.end_to_end, 0),
        number(own.end_to_end, 0),
        f"{theirs:.0f}, {peer_name(best)}" if best and theirs else "",
        speed_up(own, own.speed_up_end_to_end),
        number(own.end_to_end / theirs) if theirs else "",
    )


def _same_file_row(name: str, results: Path) -> tuple[str, ...] | None:
    """One GGUF file in several systems, where writing was timed without the prompt."""
    found = measured(name, results)
    speeds = {
        (each["method"], each["at"]): each["tokens_per_second"]
        for each in (figures(found.records) if found else ())
    }
    plain, own = (speeds.get(("draftwood", mode)) for mode in ("plain", "speculation"))
    others = {key: speed for key, speed in speeds.items() if key[0] != "draftwood"}
    if found is None or plain is None or own is None:
        return None
    best = max(others, key=lambda key: others[key], default=None)
    return (
        f"{found.run.model}, GGUF",
        "greedy, decoding alone",
        number(plain, 0),
        number(own, 0),
        f"{others[best]:.0f}, {best[0]} {best[1]}" if best else "",
        number(own / plain),
        number(own / others[best]) if best else "",
    )


def methods(*names: str) -> str:
    """Each method of some runs at each temperature, beside plain decoding of its run."""
    rows = [
        row
        for found in all_measured(*names)
        for temperature in temperatures(found.records)
        for row in _method_rows(found, temperature)
    ]
    return Table("", HEAD, tuple(rows)).markdown() if rows else MISSING


def _method_rows(found: MeasuredRun, temperature: float) -> Iterator[tuple[str, ...]]:
    drafter = head_of(found.run) or found.run.draft_model
    for each in sorted(summaries_at(found, temperature), key=_peers_last):
        own = not is_peer(each) and each.method != "plain"
        label = f"`{each.method}`" if own else name_of(each)
        yield (
            label + (f" + {drafter}" if drafter and own else "") + _lossy(each),
            f"{temperature:g}",
            str(each.prompts),
            number(each.end_to_end, 0),
            speed_up(each, each.speed_up_end_to_end),
            speed_up(each, each.speed_up),
            tokens_per_run(each),
            identity(each) if own else "",
        )


def summaries_at(found: MeasuredRun, temperature: float) -> list[Summary]:
    here = [record for record in found.records if record.temperature == temperature]
    return summaries(here, found.run)


def is_peer(each: Summary) -> bool:
    return each.method.startswith("peer:")


def fastest_peer(found: Sequence[Summary]) -> Summary | None:
    """The peer, in the mode of its, that answers whole requests fastest; None without peers."""
    peers = [each for each in found if is_peer(each)]
    return max(peers, key=lambda each: each.end_to_end or 0.0, default=None)


def _peers_last(each: Summary) -> float:
    """Sort peers behind our own methods, the fastest first."""
    return -(each.end_to_end or 0.0) if is_peer(each) else -float("inf")


def peer_name(each: Summary) -> str:
    return f"{each.method.removeprefix('peer:')} {each.at}"


def _lossy(each: Summary) -> str:
    return "" if each.lossless or is_peer(each) else " (lossy)"
