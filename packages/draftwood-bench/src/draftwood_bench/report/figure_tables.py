"""Tables of measurements without prompts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from draftwood_bench.plan.measurements import (
    REFERENCE,
    TRANSFORMERS,
    FormatQuality,
    Overhead,
    SameFile,
    VerifyCost,
)
from draftwood_bench.records.figures import figures
from draftwood_bench.records.files import Record
from draftwood_bench.report.table import Table, labelled, number

Found = dict[str, Any]


def overhead_tables(records: Sequence[Record]) -> list[Table]:
    """One row per method and temperature."""
    head = ("method", "T", "drafted", "ms per step outside forward passes", "ms in the drafter")
    rows = tuple(
        (
            each["method"]
            + (f": {labelled(each['shape'])}" if each["shape"] else "")
            + ("" if each["at"] == "default" else f", {each['at']}"),
            f"{each['temperature']:g}",
            f"{each['nodes']:.0f}",
            f"{each['milliseconds']:.2f}",
            f"{each['drafter']:.2f}" if "drafter" in each else "",
        )
        for each in figures(records)
    )
    if not any(row[-1] for row in rows):  # Python's steps do not know it
        head, rows = head[:-1], tuple(row[:-1] for row in rows)
    return [Table("time outside forward passes", head, rows)]


def cost_tables(records: Sequence[Record]) -> list[Table]:
    """By nodes at each context, and by context where there are several."""
    found = []
    for model in dict.fromkeys(record.model for record in records):
        own = figures([record for record in records if record.model == model])
        contexts, nodes = _values(own, "prompt_tokens"), _values(own, "nodes")
        if len(nodes) > 2 or len(contexts) == 1:
            found += [_by_nodes(f"{model}", own, context) for context in contexts]
        if len(contexts) > 1:
            found.append(_by_context(f"{model}", own))
    return found


def _by_nodes(model: str, own: Sequence[Found], context: int) -> Table:
    here = [each for each in own if each["prompt_tokens"] == context]
    nodes = sorted(_values(here, "nodes"))  # a record that is measured again comes last
    times = {
        path: {each["nodes"]: each["milliseconds"] for each in here if each["method"] == path}
        for path in _values(here, "method")
    }
    rows = []
    for path, of in times.items():
        rows.append((f"{path}: ms", *(number(of.get(n), 1) for n in nodes)))
        if 1 in nodes:
            rows.append((f"{path}: T(n)/T(1)", *(_ratio(of.get(n), of.get(1)) for n in nodes)))
        if path != TRANSFORMERS and TRANSFORMERS in times:
            theirs = times[TRANSFORMERS]
            label = f"{path}: {TRANSFORMERS} / this"
            rows.append((label, *(_ratio(theirs.get(n), of.get(n)) for n in nodes)))
    title = f"{model}: milliseconds of a forward pass behind {context} tokens, by nodes"
    return Table(title, ("nodes", *map(str, nodes)), tuple(rows))


def _ratio(one: float | None, other: float | None) -> str:
    """Ratio of two figures; empty where one of them is not measured yet."""
    return "" if one is None or other is None else f"{one / other:.2f}"


def _by_context(model: str, own: Sequence[Found]) -> Table:
    paths, nodes = _values(own, "method"), sorted(_values(own, "nodes"))
    known = {(each["prompt_tokens"], each["method"], each["nodes"]): each for each in own}
    rooms = {
        (each["prompt_tokens"], each["method"]): each["cache_bytes"] / 1e6
        for each in own
        if "cache_bytes" in each
    }
    cached = [path for path in paths if any("cache_bytes" in e for e in own if e["method"] == path)]
    columns = [(path, n) for n in nodes for path in paths]
    head = ("context", *(f"{path}: {n} node{'s' if n > 1 else ''}" for path, n in columns))
    head += tuple(f"{path}: cache's room, MB" for path in cached)
    rows = []
    for context in sorted(_values(own, "prompt_tokens")):
        times = (
            number(known.get((context, path, n), {}).get("milliseconds"), 1) for path, n in columns
        )
        sizes = (number(rooms.get((context, path)), 0) for path in cached)
        rows.append((str(context), *times, *sizes))
    return Table(f"{model}: milliseconds of a forward pass, by context", head, tuple(rows))


def quality_tables(records: Sequence[Record]) -> list[Table]:
    """One row per model and format, each beside float32 on the same weights."""
    head = (
        "weights in",
        "perplexity",
        f"KL from {REFERENCE}, nats per token",
        "same likeliest token",
    )
    several = len({record.model for record in records}) > 1
    found = figures(records)
    rows = tuple(
        (
            f"{each['model']}, {each['method']}" if several else each["method"],
            f"{each['perplexity']:.3f}",
            f"{each['divergence']:.5f}",
            f"{each['same_likeliest']:.2%}",
        )
        for each in found
    )
    names = ", ".join(dict.fromkeys(each["model"] for each in found))
    tokens = found[0]["tokens"]
    return [
        Table(f"{names}, {tokens} tokens in windows of {found[0]['prompt_tokens']}", head, rows)
    ]


def file_tables(records: Sequence[Record]) -> list[Table]:
    """One table per file, a row for each system and mode."""
    head = (
        *("system", "mode", "tokens/s", "range", "prompt tokens/s"),
        *("first token, s", "peak memory, MB", "texts as draftwood's"),
    )
    found = figures(records)
    return [
        Table(
            f"{model}: systems on the same file",
            head,
            tuple(
                (
                    each["method"],
                    each["at"],
                    f"{each['tokens_per_second']:.1f}",
                    f"{each['lowest']:.1f} to {each['highest']:.1f}",
                    f"{each['prompt_tokens_per_second']:.0f}",
                    f"{each['first_token_seconds']:.2f}",
                    f"{each['memory_bytes'] / 1e6:.0f}",
                    ""
                    if each["same_texts"] is None
                    else f"{each['same_texts']} of {each['texts']}",
                )
                for each in found
                if each["model"] == model
            ),
        )
        for model in _values(found, "model")
    ]


FIGURE_TABLES: dict[str, Callable[[Sequence[Record]], list[Table]]] = {
    Overhead.name: overhead_tables,
    VerifyCost.name: cost_tables,
    FormatQuality.name: quality_tables,
    SameFile.name: file_tables,
}


def figure_headline(protocol: str, records: Sequence[Record]) -> str:
    """Most important result of a measurement, in one line."""
    return " ".join(_headline(protocol, figures(records)))


def _headline(protocol: str, found: Sequence[Found]) -> Iterator[str]:
    if protocol == FormatQuality.name:
        worst = min(found, key=lambda each: each["same_likeliest"])
        yield f"{worst['model']} in {worst['method']} keeps the likeliest token at"
        yield f"{worst['same_likeliest']:.1%} of places"
        return
    if protocol == SameFile.name:
        best = max(found, key=lambda each: each["tokens_per_second"])
        yield f"{best['method']} ({best['at']}) writes {best['tokens_per_second']:.0f} tokens/s on"
        yield f"{best['model']}"
        return
    times = sorted(each["milliseconds"] for each in found)
    what = "a step outside forward passes" if protocol == Overhead.name else "a forward pass"
    yield f"{what} takes {times[0]:.2f} to {times[-1]:.2f} ms"


def _values(found: Sequence[Found], name: str) -> list[Any]:
    return list(dict.fromkeys(each[name] for each in found))
