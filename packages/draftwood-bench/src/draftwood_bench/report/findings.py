"""Figures with what they show for a title and what is counted for a caption."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftwood.stats import Stats
from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import (
    FEWEST_PASSES,
    Estimate,
    RatioTerms,
    Summary,
    block_efficiency,
    estimate,
    passes,
    pooled,
    summaries,
)
from draftwood_bench.report import figures
from draftwood_bench.report.best_shapes import best_shape
from draftwood_bench.report.overview import chosen, is_refused, of_cell
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.tables import name_of

BARS = "Bars are 95 % intervals over prompts."
DEEPEST = 10  # levels shown
FEW = 5  # prompts, below which an interval is not to be trusted


@dataclass(frozen=True)
class Finding:
    """One figure: what it shows, the drawing, and what is counted in it."""

    title: str
    drawing: str
    caption: str


def findings(measured: MeasuredRun, temperature: float) -> list[Finding]:
    """All that a run's records allow at one temperature."""
    cells = chosen(measured.records, measured.run, temperature)
    style = figures.styles(list(dict.fromkeys(map(name_of, cells))))
    style = {**{each.method: style[name_of(each)] for each in cells}, **style}
    makers: tuple[Callable[..., list[Finding]], ...] = (
        _categories,
        _sizes,
        _costs,
        _depths,
        _phases,
    )
    return [found for make in makers for found in make(measured, cells, style)]


def _categories(measured: MeasuredRun, cells: Sequence[Summary], style: Mapping) -> list[Finding]:
    """Speed-up over plain decoding by category."""
    by_cell: dict[str, dict[str, Estimate]] = {}
    names = {each.cell: name_of(each) for each in cells}
    told = [each for each in cells if not is_refused(each)]
    here = [record for each in told for record in of_cell(each, measured.records)]
    for each in summaries(here, measured.run, by_category=True):
        if each.speed_up is not None and each.category is not None:
            by_cell.setdefault(names[each.cell], {})[each.category] = each.speed_up
    if len({category for values in by_cell.values() for category in values}) < 2:
        return []
    lead = max((each for each in told if each.speed_up), key=_speed_up, default=None)
    values = (
        by_cell[name_of(lead)]
        if lead and name_of(lead) in by_cell
        else next(iter(by_cell.values()))
    )
    name = next(name for name, found in by_cell.items() if found is values)
    best, worst = (pick(values, key=lambda category: values[category].value) for pick in (max, min))
    title = (
        f"{name} gains most in {best} ({values[best].value:.2f} times), least in {worst}"
        f" ({values[worst].value:.2f})"
    )
    prompts = sorted({found.prompts for each in by_cell.values() for found in each.values()})
    caption = (
        "Tokens per second of decoding over plain decoding's on the same prompt: the median over "
        f"{_span(prompts)} prompts of each category. {BARS}"
    )
    caption += " So few prompts say little of a category." if prompts[0] < FEW else ""
    return [Finding(title, figures.by_category(by_cell, style), caption)]


def _sizes(measured: MeasuredRun, cells: Sequence[Summary], style: Mapping) -> list[Finding]:
    """Block efficiency against budgets and lengths of the protocol that has several."""
    if measured.run.protocol != "rsd":
        return []
    found = []
    what = {
        "budget": "most draft tokens of a pass (budget)",
        "length": "levels of the tree (draft length)",
    }
    for kind, label in what.items():
        temperature = cells[0].temperature
        here = [
            r
            for r in measured.records
            if r.temperature == temperature and r.at.startswith(f"{kind} ")
        ]
        lines: dict[str, list[tuple[float, Estimate]]] = {}
        for method in dict.fromkeys(record.method for record in here):
            for at in sorted({record.at for record in here}, key=_number):
                shape = best_shape(here, method, at)
                told = shape and passes(shape) >= FEWEST_PASSES
                if shape and told and (known := block_efficiency(shape)):
                    lines.setdefault(method, []).append((_number(at), known))
        if lines:
            caption = (
                f"Block efficiency, tokens per forward pass of the target, at equal {kind}; of"
                f" several shapes the best. {BARS}"
            )
            drawing = figures.against(lines, style, label, "tokens per forward pass of the target")
            found.append(Finding(_leader(lines, kind), drawing, caption))
    return found


def _costs(measured: MeasuredRun, cells: Sequence[Summary], style: Mapping) -> list[Finding]:
    """The verify-cost curve of the machine, and where the methods are beside it."""
    curve = measured.run.curve
    if not curve or not curve["seconds"] or not curve["seconds"][0]:
        return []
    nodes, seconds = curve["nodes"], curve["seconds"]
    ratios = [value / seconds[0] for value in seconds]
    gains = {
        name_of(each): (each.guesses_per_run + 1, each.block_efficiency)
        for each in cells
        if each.method != "plain"
        and each.guesses_per_run is not None
        and each.block_efficiency
        and each.passes >= FEWEST_PASSES
    }
    shown = min(range(len(nodes)), key=lambda place: abs(nodes[place] - 16))
    title = f"A pass over {nodes[shown]} nodes costs {ratios[shown]:.2f} times a pass over one"
    caption = (
        "Line: measured seconds of a pass of the target over n nodes, over the"
        f" {seconds[0] * 1e3:.1f} ms of one node. Marks: tokens per pass of each method at its mean"
        " number of nodes. A mark above the line gains before drafting is paid."
    )
    return [
        Finding(
            title,
            figures.costs(nodes, ratios, gains, style),
            f"{caption} {BARS}" if gains else caption,
        )
    ]


def _depths(measured: MeasuredRun, cells: Sequence[Summary], style: Mapping) -> list[Finding]:
    """Share of passes in which at least so many draft tokens were accepted."""
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for each in cells:
        group = of_cell(each, measured.records)
        deepest = max(
            (len(record.stats.get("accepted_by_depth") or ()) for record in group), default=0
        )
        for depth in range(min(deepest, DEEPEST)):
            if each.passes >= FEWEST_PASSES and (share := estimate(group, accepted(depth))):
                lines.setdefault(name_of(each), []).append((depth + 1, share))
    if not lines:
        return []
    passes = sorted(each.passes for each in cells if name_of(each) in lines)
    name = max(lines, key=lambda each: lines[each][0][1].value)
    far = lines[name][min(3, len(lines[name]) - 1)]
    title = f"{name} keeps a draft token in {lines[name][0][1].value:.0%} of passes"
    title += f", at least {far[0]:.0f} in {far[1].value:.0%}" if far[0] > 1 else ""
    drawing = figures.against(
        lines, style, "accepted draft tokens, at least", "share of passes of the target"
    )
    return [
        Finding(
            title,
            drawing,
            f"Share of the target's passes, {_span(passes)} of each method, that accepted at least"
            f" so many draft tokens in a row. {BARS}",
        )
    ]


def _phases(measured: MeasuredRun, cells: Sequence[Summary], style: Mapping) -> list[Finding]:
    """Time by phase."""
    bars: dict[str, dict[str, float]] = {}
    for each in cells:
        group = of_cell(each, measured.records)
        known = {phase: pooled(group, per_token(phase)) for phase in Stats.phases}
        if any(known.values()):
            bars[name_of(each)] = {
                phase: 1e3 * value for phase, value in known.items() if value is not None
            }
    if not bars:
        return []
    name = max(bars, key=lambda each: bars[each].get("draft", 0.0) / sum(bars[each].values()))
    total = sum(bars[name].values())
    title = (
        f"Of the methods, {name} spends most on drafting:"
        f" {bars[name].get('draft', 0.0) / total:.0%} of its time"
    )
    caption = (
        "Milliseconds per token after the first. draft: proposing and learning; target: the"
        " target's passes; verify: probabilities, verdict, cache. The prompt's pass is left out."
    )
    return [Finding(title, figures.phases(bars), caption)]


def accepted(depth: int) -> RatioTerms:
    """Passes that accepted more than ``depth`` draft tokens, and all passes."""

    def part(record: Record) -> tuple[float, float] | None:
        counts, runs = record.stats.get("accepted_by_depth"), record.stats.get("target_runs")
        return (
            (counts[depth] if depth < len(counts) else 0, runs)
            if counts is not None and runs
            else None
        )

    return part


def per_token(phase: str) -> RatioTerms:
    """Seconds of a phase, and tokens after the first."""

    def part(record: Record) -> tuple[float, float] | None:
        seconds = (record.stats.get("seconds") or {}).get(phase)
        tokens = record.stats.get("tokens", 0) - record.stats.get("first_tokens", 1)
        return (seconds, tokens) if seconds is not None and tokens > 0 else None

    return part


def _leader(lines: Mapping[str, Sequence[tuple[float, Estimate]]], kind: str) -> str:
    largest = max(size for line in lines.values() for size, _ in line)
    there = {name: found for name, line in lines.items() for size, found in line if size == largest}
    best = max(there, key=lambda name: there[name].value)
    near = [name for name in there if name != best and there[name].high >= there[best].low]
    doubt = f", not clearly more than {' or '.join(near)}" if near else ""
    return (
        f"At {kind} {largest:g}, {best} yields most: {there[best].value:.2f} tokens per pass{doubt}"
    )


def _speed_up(each: Summary) -> float:
    return each.speed_up.value if each.speed_up and not each.method.startswith("peer:") else 0.0


def _number(at: str) -> int:
    return int(at.split()[1])


def _span(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
