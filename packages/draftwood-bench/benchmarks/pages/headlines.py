"""The figures that come first, as sentences.

Whole requests and decoding alone, beside peers, and what 8 bits cost.
"""

from collections.abc import Sequence

from draftwood_bench.plan.measurements import REFERENCE
from draftwood_bench.plan.protocols import listed
from draftwood_bench.records.figures import figures
from draftwood_bench.records.statistics import Summary, summaries
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.tables import temperatures


def speed_sentences(measured: MeasuredRun, method: str) -> list[str]:
    """Compare a method with plain decoding at each temperature.

    Told for whole requests, then for decoding alone.
    """
    run = measured.run
    sentences = []
    for temperature in temperatures(measured.records):
        each = _of_method(measured, temperature, method)
        if each is None:
            continue
        where = (
            f"{run.model} in {run.dtype}{' with a head' if run.drafter else ''},"
            f" {run.hardware['cores']} CPU cores, {_sampled(temperature)}"
        )
        if each.speed_up is None or each.speed_up_end_to_end is None:
            sentences.append(f"**{where}:** no speed-up is told, since texts differ.")
            continue
        same = (
            f"; {each.same} of {each.compared} texts are plain decoding's"
            if each.same is not None
            else ""
        )
        sentences.append(
            f"**{where}:** `{method}` answers whole requests, prompt included,"
            f" {each.speed_up_end_to_end} times as fast as plain decoding; decoding alone is"
            f" {each.speed_up} times as fast{same}."
        )
    return sentences


def method_sentences(measured: MeasuredRun) -> list[str]:
    """Name the methods that gain over whole requests, by the bounds as they are printed; tokens per
    pass are not speed.
    """
    sentences = []
    for temperature in temperatures(measured.records):
        found = [each for each in _summaries(measured, temperature) if each.speed_up_end_to_end]
        gains = {each.method: each.speed_up_end_to_end for each in found}
        groups = {
            "faster than plain decoding": [
                name for name, gain in gains.items() if gain and round(gain.low, 2) > 1
            ],
            "slower": [name for name, gain in gains.items() if gain and round(gain.high, 2) < 1],
        }
        groups["level"] = [n for n in gains if not any(n in group for group in groups.values())]
        told = [
            f"{word} {listed([f'`{name}` ({gains[name]})' for name in names])}"
            for word, names in groups.items()
            if names
        ]
        sentences.append(f"**Whole requests, {_sampled(temperature)}:** {'; '.join(told)}.")
        if known := [(each, each.block_efficiency) for each in found if each.block_efficiency]:
            most, tokens = max(known, key=lambda pair: pair[1].value)
            sentences.append(
                f"**Most tokens per pass, {_sampled(temperature)}:** `{most.method}`, {tokens}, at"
                f" {gains[most.method]} times the speed of plain decoding."
            )
    return sentences


def peer_sentences(measured: MeasuredRun, method: str) -> list[str]:
    """Compare a method with the fastest peer by tokens per second, at each temperature.

    Whole requests come first, then decoding alone. Nothing is said where no peer was measured.
    """
    sentences = []
    for temperature in temperatures(measured.records):
        own = _of_method(measured, temperature, method)
        peers = [
            each
            for each in _summaries(measured, temperature)
            if each.method.startswith("peer:") and each.tokens_per_second and each.end_to_end
        ]
        if own and peers and own.tokens_per_second and own.end_to_end:
            sentences.append(
                f"**Beside other systems, {_sampled(temperature)}:** {_beside(own, peers)}"
            )
    return sentences


def _beside(own: Summary, peers: Sequence[Summary]) -> str:
    """Compare a method with the fastest peers; all of them were timed."""
    alone = max(peers, key=lambda each: each.tokens_per_second or 0.0)
    whole = max(peers, key=lambda each: each.end_to_end or 0.0)
    decoding, best = own.tokens_per_second or 0.0, alone.tokens_per_second or 1.0
    ended, best_whole = own.end_to_end or 0.0, whole.end_to_end or 1.0
    also = "" if whole is alone else f", {_peer(alone)}"
    return (
        f"over whole requests `{own.method}` writes {ended / best_whole:.1f} times the tokens per"
        f" second of the fastest peer, {_peer(whole)} ({ended:.0f} against {best_whole:.0f});"
        f" decoding alone {decoding / best:.1f} times ({decoding:.0f} against {best:.0f}{also})."
    )


def quality_sentences(measured: MeasuredRun) -> list[str]:
    """Shares of places where products in few bits keep the most probable token."""
    told = [
        f"{found['same_likeliest']:.1%}".replace("%", " %") + f" of places in {found['method']}"
        for found in figures(measured.records)
        if found["method"] != REFERENCE
    ]
    return [
        f"**{measured.run.model} beside float32:** the likeliest token is the same at"
        f" {listed(told)}."
    ] * bool(told)


def _of_method(measured: MeasuredRun, temperature: float, method: str) -> Summary | None:
    found = _summaries(measured, temperature)
    return next((each for each in found if each.method == method), None)


def _summaries(measured: MeasuredRun, temperature: float) -> list[Summary]:
    return summaries(
        [record for record in measured.records if record.temperature == temperature], measured.run
    )


def _sampled(temperature: float) -> str:
    return f"T = {temperature:g}" if temperature else "greedy"


def _peer(each: Summary) -> str:
    return f"{each.method.removeprefix('peer:')} with {each.at}"
