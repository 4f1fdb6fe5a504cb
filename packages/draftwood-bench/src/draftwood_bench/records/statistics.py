"""Turn records into figures: pure functions, shared by tables and reports.

Everything is paired by prompt: a ratio compares two configurations on the same prompts, turns and
rounds, and its interval comes from drawing prompts again, with all their turns and rounds, since
these are not independent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isinf

import numpy as np

from draftwood_bench.records.files import Record, RunInfo
from draftwood_bench.records.judging import compared_texts, joint_p_value
from draftwood_bench.records.machine import roofline, weight_bytes
from draftwood_bench.records.significance import is_strict

DRAWS = 2000
FEWEST_PASSES = 20
"""Fewest forward passes behind a share or mean in tables and pages; records and JSON keep all."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, over so many prompts; without bounds over one alone."""

    value: float
    low: float
    high: float
    prompts: int

    def __str__(self) -> str:
        return self.written(".2f")

    def written(self, shape: str) -> str:
        """The number and its bounds in a format; the number alone where there is no bound."""
        if isinf(self.high - self.low):
            return f"{self.value:{shape}}"
        return f"{self.value:{shape}} [{self.low:{shape}}, {self.high:{shape}}]"


@dataclass(frozen=True)
class Summary:
    """Statistics of one configuration at one temperature, in one category or all.

    Attributes:
        cell: its key; so are ``method`` to ``lossless``.
        category: None for all together.
        prompts: answered.
        answers: to all their turns in all rounds.
        tokens: emitted.
        block_efficiency: emitted tokens per pass of the target, pooled; None for peers that do not
            tell.
        guesses_per_run: drafted tokens per pass of the target.
        tokens_per_second: decoding alone, all tokens over all seconds; None where nothing was
            timed.
        end_to_end: tokens per second of the whole request.
        speed_up: over plain decoding on the same prompts, decoding alone: the median over prompts.
            None where a text differs without excuse.
        speed_up_end_to_end: of whole requests.
        total_speed_up: all tokens over all seconds, as someone who waits for every answer sees it.
        mbsu: memory-bound speed-up, see ``mbsu``.
        passes: of the target behind ``block_efficiency``, the prompts' left out.
        acceptance: share of passes that accepted a draft token, where the bound is known.
        bound: alpha*, the greatest share possible.
        bounded_passes: behind both.
        roofline: tokens per second over the rate at which memory can give the weights.
        quality: mean score by name.
        same: texts that are plain decoding's: greedy ones, and drawn ones of methods that match,
            for the same seed; None where no text has to be.
        compared: of so many.
        ties: greedy texts that leave it where two tokens tie within rounding; they take no part in
            ratios.
        failures: texts that had to be the same and differ without excuse; from a lossless
            configuration, which is a bug, or a lossy one. Of drawn texts in 8- and 11-bit precision
            none is called a failure: what rounding does to a draw is not known.
        divergence: the first of these, or else of the ties.
        law: joint p-value of the tests of the next token's distribution that drew enough samples.
    """

    cell: str
    method: str
    at: str
    shape: str | None
    temperature: float
    lossless: bool
    category: str | None
    prompts: int
    answers: int
    tokens: int
    block_efficiency: Estimate | None
    guesses_per_run: float | None
    tokens_per_second: float | None
    end_to_end: float | None
    speed_up: Estimate | None
    speed_up_end_to_end: Estimate | None
    total_speed_up: Estimate | None
    mbsu: float | None
    passes: int
    acceptance: float | None
    bound: float | None
    bounded_passes: int
    roofline: float | None
    quality: dict[str, float]
    same: int | None
    compared: int
    ties: int
    failures: int
    divergence: dict | None
    law: float | None


def summaries(records: Sequence[Record], run: RunInfo, by_category: bool = False) -> list[Summary]:
    """A summary of every configuration and temperature in the order of the records.

    Each is over all prompts, or by category.
    """
    groups: dict[tuple[str, float, str | None], list[Record]] = {}
    for record in records:
        category = record.category if by_category else None
        groups.setdefault((record.cell, record.temperature, category), []).append(record)
    found, base = [], [record for record in records if record.method == "plain"]
    for (_, temperature, category), group in groups.items():
        plain = [r for r in base if r.temperature == temperature and category in (None, r.category)]
        plain = [r for r in plain if not r.load or r.at == group[0].at]
        found.append(summary(group, plain, run, category))
    return found


def summary(
    group: Sequence[Record], plain: Sequence[Record], run: RunInfo, category: str | None = None
) -> Summary:
    """A configuration's summary, beside that of plain decoding on the same prompts."""
    first = group[0]
    compared = compared_texts(group, plain)
    different = [record for record, same in compared if not same and not record.is_peer]
    ties = [record for record in different if record.divergence and record.divergence["tie"]]
    excused = different if first.temperature and not is_strict(run.dtype) else ties
    failures = [record for record in different if record not in excused]
    shown = (failures or ties or [None])[0]
    comparable = [record for record in group if record not in ties]
    pairs = [] if failures or first.method == "plain" else paired(comparable, plain)
    speed = pooled(group, decoding)
    bounded = [r.stats for r in group if "root_acceptance_bound" in r.stats]
    runs = sum(r.stats.get("bounded_runs", 0) for r in group)
    efficiency = block_efficiency(group)
    return Summary(
        cell=first.cell,
        method=first.method,
        at=first.at,
        shape=first.shape,
        temperature=first.temperature,
        lossless=first.lossless,
        category=category,
        prompts=len({record.prompt for record in group}),
        answers=len(group),
        tokens=sum(record.stats.get("tokens", 0) for record in group),
        block_efficiency=efficiency,
        guesses_per_run=pooled(group, drafted),
        tokens_per_second=speed,
        end_to_end=pooled(group, whole),
        speed_up=median_ratio(pairs, decoding),
        speed_up_end_to_end=median_ratio(pairs, whole),
        total_speed_up=pooled_ratio(pairs, whole),
        mbsu=None
        if efficiency is None
        else mbsu(efficiency.value, first.draft_steps, run.draft_ratio),
        passes=passes(group),
        acceptance=_weighed(bounded, "root_acceptance", runs),
        bound=_weighed(bounded, "root_acceptance_bound", runs),
        bounded_passes=runs,
        roofline=roofline(speed, run.bandwidth, weight_bytes(first, run)),
        quality=mean_quality(group),
        same=sum(same for _, same in compared) if compared else None,
        compared=len(compared),
        ties=len(ties),
        failures=len(failures),
        divergence=None
        if shown is None
        else {"prompt": shown.prompt, "turn": shown.turn, **(shown.divergence or {})},
        law=joint_p_value(group),
    )


RatioTerms = Callable[[Record], tuple[float, float] | None]
"""Numerator and denominator that a record adds to a ratio of sums; None where it knows neither."""


def decoding(record: Record) -> tuple[float, float] | None:
    """Tokens after the first, and the seconds after the first.

    These are what the request took beside the prompt's pass, as of every peer; under load, what it
    took from its first token on. Where nothing is known of the request as a whole they are those of
    its steps alone.
    """
    stats = record.stats
    tokens, speed = (
        stats.get("tokens", 0) - stats.get("first_tokens", 1),
        stats.get("tokens_per_second"),
    )
    if tokens <= 0 or not speed:
        return None
    if record.load:
        return tokens, max(record.load["finished"] - record.load["first_token"], 1e-9)
    first = (stats.get("seconds") or {}).get("prefill")
    if record.seconds_end_to_end is None or first is None:
        return tokens, tokens / speed
    return tokens, max(record.seconds_end_to_end - first, 1e-9)


def whole(record: Record) -> tuple[float, float] | None:
    """All tokens, and the seconds of the whole request."""
    seconds = record.seconds_end_to_end
    return (record.stats.get("tokens", 0), seconds) if seconds else None


def per_run(record: Record) -> tuple[float, float] | None:
    """Tokens after the prompt's pass, and the other passes of the target."""
    tokens, runs = record.stats.get("tokens", 0), record.stats.get("target_runs")
    return (tokens - record.stats.get("first_tokens", 1), runs) if runs else None


def drafted(record: Record) -> tuple[float, float] | None:
    """Drafted tokens, and passes of the target."""
    drafted, runs = record.stats.get("drafted"), record.stats.get("target_runs")
    return (drafted, runs) if runs and drafted is not None else None


def pooled(records: Iterable[Record], terms: RatioTerms) -> float | None:
    """Sum of numerators over sum of denominators; None where no record knows them."""
    known = [found for record in records if (found := terms(record))]
    return sum(n for n, _ in known) / sum(d for _, d in known) if known else None


def estimate(records: Iterable[Record], terms: RatioTerms) -> Estimate | None:
    """``pooled`` with its interval over prompts."""
    sums = _by_prompt(records, terms)
    return None if not sums else estimate_of(np.array(list(sums.values()))[None], _ratio)


def passes(records: Iterable[Record]) -> int:
    """Count the target's passes behind the block efficiency of records."""
    return sum(record.stats.get("target_runs") or 0 for record in records)


def block_efficiency(records: Iterable[Record]) -> Estimate | None:
    """Tokens per pass, pooled, with its interval over prompts."""
    return estimate(records, per_run)


def block_efficiency_ratio(one: Sequence[Record], other: Sequence[Record]) -> Estimate | None:
    """Ratio of two configurations' block efficiencies on their common prompts."""
    return pooled_ratio(paired(one, other), per_run)


Pairs = list[tuple[Record, Record]]


def paired(one: Sequence[Record], other: Sequence[Record]) -> Pairs:
    """Records of the same prompt, turn, round and temperature.

    The other record has the figures measured beside this one.
    """
    known = {(r.temperature, r.prompt, r.turn, r.round): r for r in other}
    keys = [(r.temperature, r.prompt, r.turn, r.round) for r in one]
    pairs = [(record, known[key]) for record, key in zip(one, keys, strict=True) if key in known]
    return [
        (record, replace(base, **record.beside) if record.beside else base)
        for record, base in pairs
    ]


def pooled_ratio(pairs: Pairs, terms: RatioTerms) -> Estimate | None:
    """Ratio of two pooled numbers, with its interval; None where nothing is common."""
    sides = _sides(pairs, terms)
    return (
        None
        if sides is None
        else estimate_of(sides, lambda sums: _ratio(sums[0]) / _ratio(sums[1]))
    )


def difference(values: np.ndarray) -> Estimate:
    """Mean of one value for each prompt, with its interval."""
    return _with_interval(float(values.mean()), values[_draws(len(values))].mean(1), len(values))


def median_ratio(pairs: Pairs, terms: RatioTerms) -> Estimate | None:
    """Median over prompts of the ratio on each prompt, with its interval.

    None where nothing is common.
    """
    sides = _sides(pairs, terms)
    if sides is None:
        return None
    ratios = (sides[0, :, 0] / sides[0, :, 1]) / (sides[1, :, 0] / sides[1, :, 1])
    drawn = np.median(ratios[_draws(len(ratios))], axis=1)
    return _with_interval(float(np.median(ratios)), drawn, len(ratios))


def mbsu(efficiency: float, draft_steps: int | None, ratio: float | None) -> float | None:
    """Memory-bound speed-up: tokens per read of the target's weights.

    The draft model's reads are counted by size. Block efficiency over (draft steps x size ratio +
    1), as the tables of Jeon et al. 2024, arXiv:2402.14160, have it.

    Args:
        efficiency: block efficiency.
        draft_steps: passes of the draft model per tree, one per level; None where there is no draft
            model.
        ratio: parameters of the draft model over those of the target; None where that is not known.
    """
    if draft_steps is None:
        return efficiency
    return None if ratio is None else efficiency / (draft_steps * ratio + 1)


def throughput(records: Sequence[Record]) -> float | None:
    """Tokens per second of all requests of a configuration under load together.

    Every round has a clock of its own.
    """
    rounds: dict[int, list[dict]] = {}
    for record in records:
        if record.load:
            rounds.setdefault(record.round, []).append(record.load)
    seconds = sum(
        max(load["finished"] for load in loads) - min(load["arrived"] for load in loads)
        for loads in rounds.values()
    )
    return (
        sum(record.stats["tokens"] for record in records if record.load) / seconds
        if seconds
        else None
    )


def mean_quality(records: Sequence[Record]) -> dict[str, float]:
    """Mean of every score by its name."""
    scores: dict[str, list[float]] = {}
    for record in records:
        if record.quality:
            scores.setdefault(record.quality["name"], []).append(record.quality["value"])
    return {name: sum(values) / len(values) for name, values in scores.items()}


def _by_prompt(records: Iterable[Record], terms: RatioTerms) -> dict[str, tuple[float, float]]:
    sums: dict[str, tuple[float, float]] = {}
    for record in records:
        if found := terms(record):
            before = sums.get(record.prompt, (0.0, 0.0))
            sums[record.prompt] = (before[0] + found[0], before[1] + found[1])
    return sums


def _sides(pairs: Pairs, terms: RatioTerms) -> np.ndarray | None:
    """Sums by prompt of both sides: [2 prompts 2]; None without a common prompt."""
    both = [(one, other) for one, other in pairs if terms(one) and terms(other)]
    sides = [_by_prompt([pair[side] for pair in both], terms) for side in (0, 1)]
    prompts = list(sides[0])
    return np.array([[side[prompt] for prompt in prompts] for side in sides]) if prompts else None


def _ratio(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def _draws(count: int) -> np.ndarray:
    """Prompts drawn again: [draws prompts]."""
    return np.random.default_rng(0).integers(0, count, (DRAWS, count))


@cache
def _weights(count: int) -> np.ndarray:
    """Count each prompt in each bootstrap draw: [draws prompts]."""
    return np.array([np.bincount(draw, minlength=count) for draw in _draws(count)], dtype=float)


def estimate_of(sums: np.ndarray, figure: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """A figure of sums [sides prompts terms] over prompts, with its interval from prompts drawn
    again; it is asked of [sides terms], and of [sides draws terms].
    """
    count = sums.shape[1]
    drawn = np.ravel(figure(_weights(count) @ sums))
    return _with_interval(float(np.ravel(figure(sums.sum(axis=1)))[0]), drawn, count)


def _with_interval(value: float, drawn: np.ndarray, count: int) -> Estimate:
    if count < 2:  # nothing tells how far prompts lie apart
        return Estimate(value, -inf, inf, count)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Estimate(value, float(low), float(high), count)


def _weighed(stats: Sequence[dict], name: str, runs: int) -> float | None:
    return sum(s[name] * s["bounded_runs"] for s in stats) / runs if runs else None
