"""One page that needs nothing else: styles, drawings and the little script are in it."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from draftwood_bench.records.notes import notes
from draftwood_bench.records.statistics import Summary
from draftwood_bench.report import trees
from draftwood_bench.report.figure_tables import FIGURE_TABLES, figure_headline
from draftwood_bench.report.findings import Finding, findings
from draftwood_bench.report.overview import chosen, facts, is_refused, overview
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.sections import Drawing, Gallery, ProtocolSection
from draftwood_bench.report.table import Table
from draftwood_bench.report.tables import name_of, over_plain, tables, temperatures

WORDS = 40  # characters from which a cell is read as text
COLUMNS = (
    "Prompts: how many each row is of. Tokens per pass: block efficiency, tokens emitted per"
    " forward pass of the target, the prompt's left out. Speed-up: tokens per second over plain"
    " decoding's on the same prompt, median over prompts; decoding alone counts from the first"
    " token on, end to end counts whole requests with their prompts. None is told where a text"
    " differs. Brackets are 95 % intervals from prompts drawn again. Same text: answers equal to"
    " plain decoding's, token by token: greedy ones, and for the same seed drawn ones of methods"
    " that match; of others p tells whether the next token follows the model's distribution. Of"
    " the roofline: tokens/s over memory bandwidth / bytes of the weights. alpha*: the greatest"
    " share of passes in which any exact rule could accept a draft token at the root, beside the"
    " share that did; in brackets the passes that both are of."
)
TREES = (
    "One forward pass of the target runs all of these tokens. The path with ✓ and a thick border"
    " was accepted; the target then adds a token of its own. Probabilities and sources show under"
    " the pointer."
)
LOAD_COLUMNS = (
    "Tokens/s of all: all tokens over the seconds from the first arrival to the last token, and the"
    " same over plain decoding's under the same load. Seconds: from a request's arrival to its"
    " first token and to its end, medians over requests, and within which 95 % of them ended."
    " Tokens/pass: block efficiency."
)


def page(runs: Sequence[MeasuredRun], sections: Sequence[ProtocolSection] = ()) -> str:
    """The page of one or several runs, the first one first, and of sections behind them."""
    heads = [headline(measured) for measured in runs]
    body = [
        _run(measured, head, place)
        for place, (measured, head) in enumerate(zip(runs, heads, strict=True))
    ]
    body += [_section(each, place) for place, each in enumerate(sections, start=len(runs))]
    heads += [each.headline for each in sections]
    if len(heads) > 1:
        links = [
            f'<li><a href="#run-{place}">{escape(head)}</a></li>'
            for place, head in enumerate(heads)
        ]
        body.insert(0, f"<nav><ol>{''.join(links)}</ol></nav>")
    frame = Template(files("draftwood_bench.report").joinpath("page.html").read_text("utf-8"))
    return frame.substitute(title=escape(heads[0]), body="\n".join(body))


def headline(measured: MeasuredRun) -> str:
    """Most important result of a run.

    A difference of texts, else the greatest speed-up, else the most tokens per pass.
    """
    if measured.run.protocol in FIGURE_TABLES:
        return figure_headline(measured.run.protocol, measured.records)
    cells = [
        each
        for temperature in temperatures(measured.records)
        for each in chosen(measured.records, measured.run, temperature)
        if each.method != "plain" and not each.method.startswith("peer:")
    ]
    wrong = [each for each in cells if each.lossless and is_refused(each)]
    if wrong:
        names = ", ".join(dict.fromkeys(name_of(each) for each in wrong))
        return f"{names}: texts differ from plain decoding's, so no speed-up is told"
    gains = {
        each.cell: over_plain(each, measured.records) or 0.0
        for each in cells
        if not is_refused(each)
    }
    if measured.run.protocol == "load" and any(gains.values()):
        return _of_load(max(cells, key=lambda each: gains.get(each.cell, 0.0)), measured)
    quick = max(
        (each for each in cells if each.speed_up),
        key=lambda e: e.speed_up.value if e.speed_up else 0,
        default=None,
    )
    if quick is not None and quick.speed_up is not None:
        whole = quick.speed_up_end_to_end
        also = "" if whole is None else f" ({whole.value:.2f} times end to end)"
        gain = f"{quick.speed_up.value:.2f} times as fast as plain decoding{also}"
        return f"{name_of(quick)} decodes {gain}{_proven(quick)}"
    most = max(
        (e for e in cells if e.block_efficiency),
        key=lambda e: e.block_efficiency.value if e.block_efficiency else 0,
        default=None,
    )
    if most is None or most.block_efficiency is None:
        return f"only plain decoding of {measured.run.model} is measured yet"
    value, where = most.block_efficiency.value, f"T = {most.temperature:g}"
    return (
        f"{most.method} yields {value:.2f} tokens per forward pass of {measured.run.model}"
        f" ({most.at}, {where})"
    )


def _of_load(best: Summary, measured: MeasuredRun) -> str:
    gain = over_plain(best, measured.records) or 0.0
    return (
        f"{name_of(best)}: {gain:.2f} times the tokens per second of plain decoding, all"
        f" together{_proven(best)}"
    )


def _proven(each: Summary) -> str:
    return (
        f", with the same text in {each.same} of {each.compared} answers"
        if each.same is not None
        else ""
    )


def _run(measured: MeasuredRun, head: str, place: int) -> str:
    run, records = measured.run, measured.records
    kinds = temperatures(records)
    begin = [_begin(head, place, run.protocol, measured.folder.name, facts(run, records))]
    if run.protocol in FIGURE_TABLES:
        shown = [_table(table) for table in tables(records, run)]
        shown += [f"<p>{escape(note)}.</p>" for note in notes(records, run)]
        return "\n".join([*begin, *shown, _environment(measured), "</section>"])
    parts = [
        *begin,
        *(_table(overview(records, run, temperature)) for temperature in kinds),
        f"<p><small>{escape(LOAD_COLUMNS if run.protocol == 'load' else COLUMNS)}</small></p>",
        *(f"<p>{escape(note)}.</p>" for note in notes(records, run)[1:]),
    ]
    for temperature in kinds:
        found = findings(measured, temperature)
        parts.append(_figures(f"Figures, T = {temperature:g}", found, f"r{place}t{temperature:g}"))
    parts += [_trees(measured), _all_tables(measured), _environment(measured), "</section>"]
    return "\n".join(parts)


def _section(told: ProtocolSection, place: int) -> str:
    return "\n".join(
        (
            _begin(told.headline, place, told.protocol, told.names, told.facts_told),
            *map(_table, told.tables),
            _figures("Figures", told.findings, f"r{place}"),
            *(each.html() for each in told.galleries),
            "</section>",
        )
    )


def _begin(head: str, place: int, protocol: str, names: str, known: Mapping[str, str]) -> str:
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in known.items()
    )
    return (
        f'<section id="run-{place}"><h1>{escape(head)}</h1>\n<p class="soft">draftwood bench'
        f" {escape(protocol)}, {escape(names)}</p><dl>{listed}</dl>"
    )


def _figures(title: str, found: Sequence[Finding], name: str) -> str:
    shown = "".join(_figure(each, f"{name}f{number}") for number, each in enumerate(found))
    return f'<h2>{escape(title)}</h2><div class="figures">{shown}</div>' if shown else ""


def _figure(found: Finding, name: str) -> str:
    """Names inside a drawing are made this figure's own."""
    drawing = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", found.drawing)
    drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{escape(found.title)}"', 1)
    caption = f"<figcaption>{escape(found.caption)}</figcaption>"
    return f"<figure><h3>{escape(found.title)}</h3>{drawing}{caption}</figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h3>{escape(table.title)}</h3><div class="scroll">{grid}</div>'


def _cell(text: str) -> str:
    kind = ' class="words"' if len(text) >= WORDS else ""
    return f"<td{kind}>{escape(text)}</td>"


def _trees(measured: MeasuredRun) -> str:
    """Draft trees to be chosen by method and step."""
    drawings = []
    for method, steps in measured.trees.items():
        best = max(steps, key=lambda step: len(step["path"]), default=None)
        for step in sorted(steps, key=lambda step: step["step"]):
            said = f"… {escape(step['context_tail'].translate(trees.VISIBLE))}"
            emitted = escape(step["emitted"].translate(trees.VISIBLE))
            body = (
                f'<p class="context soft">{said}</p>{trees.tree(step)}'
                f'<p>Emitted: <span class="context">{emitted}</span></p>'
            )
            drawings.append(Drawing(method, trees.count(step), body, step is best))
    return Gallery("Draft trees", TREES, drawings, ("Method", "Step")).html()


def _all_tables(measured: MeasuredRun) -> str:
    shown = "".join(_table(table) for table in tables(measured.records, measured.run))
    return (
        "<h2>All tables</h2><details><summary>Every cell that was"
        f" measured</summary>{shown}</details>"
    )


def _environment(measured: MeasuredRun) -> str:
    run = measured.run
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    commands = "\n".join(
        dict.fromkeys(
            [run.command, *(each["command"] for each in run.resumed if each.get("command"))]
        )
    )
    known = {
        "processor": run.hardware.get("processor"),
        "versions": versions,
        "bandwidth": "" if run.bandwidth is None else f"{run.bandwidth / 1e9:.1f} GB/s",
        "weights": (
            "" if run.weight_bytes is None else f"{run.weight_bytes / 1e6:.0f} MB read per token"
        ),
        "peers": "; ".join(f"{name}: {_peer(known)}" for name, known in run.peers.items()),
    }
    listed = "".join(
        f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in known.items() if value
    )
    options = escape(json.dumps(run.options, indent=1))
    return (
        f"<h2>Environment and commands</h2><pre>{escape(commands)}</pre><dl>{listed}</dl>"
        f"<details><summary>All options</summary><pre>{options}</pre></details>"
    )


def _peer(known: dict) -> str:
    return known.get("absent") or ", ".join(
        f"{name} {value}" for name, value in known.items() if name != "failed"
    )
