"""The figures that come first, as sentences.

Whole requests and decoding alone, beside peers, and what 8 bits cost.
"""

from draftwood_bench.plan.protocols import listed
from draftwood_bench.records.figures import figures
from draftwood_bench.records.statistics import Summary, summaries
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.tables import temperatures


def speed_sentences(measured: MeasuredRun, method: str) -> list[str]:
    """Speed-ups of a method over plain decoding at each temperature.

    Told for whole requests, then for decoding alone.
    """
    run = measured.run
    sentences = []
    for temperature in temperatures(measured.records):
        each = next(found for found in _summaries(measured, temperature) if found.method == method)
        where = (
            f"{run.model} in {run.dtype}, {run.hardware['cores']} CPU cores,"
            f" {_sampled(temperature)}"
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
    """Name methods that gain over whole requests, and warn that tokens per pass are not speed."""
    sentences = []
    for temperature in temperatures(measured.records):
        found = [each for each in _summaries(measured, temperature) if each.speed_up_end_to_end]
        gains = {each.method: each.speed_up_end_to_end for each in found}
        groups = {
            "faster than plain decoding": [n for n, gain in gains.items() if gain and gain.low > 1],
            "slower": [n for n, gain in gains.items() if gain and gain.high < 1],
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


def peer_sentence(measured: MeasuredRun, method: str) -> str:
    """Speed of a method relative to the fastest peer, by tokens per second.

    Told for whole requests, then for decoding alone.

    Raises:
        ValueError: where no peer was measured.
    """
    found = _summaries(measured, 0.0)
    own = next(each for each in found if each.method == method)
    peers = [
        each
        for each in found
        if each.method.startswith("peer:") and each.tokens_per_second and each.end_to_end
    ]
    if not peers or not own.tokens_per_second or not own.end_to_end:
        raise ValueError(f"{measured.folder} holds no speeds of peers beside {method}")
    alone = max(peers, key=lambda each: each.tokens_per_second or 0.0)
    whole = max(peers, key=lambda each: each.end_to_end or 0.0)
    rates = (
        (own.tokens_per_second, alone.tokens_per_second or 0.0),
        (own.end_to_end, whole.end_to_end or 0.0),
    )
    (decoding, best), (ended, best_whole) = rates
    also = "" if whole is alone else f", {_peer(alone)}"
    return (
        f"**Beside other systems, greedy:** over whole requests `{method}` writes"
        f" {ended / best_whole:.1f} times the tokens per second of the fastest peer,"
        f" {_peer(whole)} ({ended:.0f} against {best_whole:.0f}); decoding alone"
        f" {decoding / best:.1f} times ({decoding:.0f} against {best:.0f}{also})."
    )


def quality_sentence(measured: MeasuredRun) -> str:
    """Share of places where 8- and 16-bit products keep the most probable token."""
    shares = {
        found["method"]: f"{found['same_likeliest']:.1%}".replace("%", " %")
        for found in figures(measured.records)
    }
    model = measured.run.model
    return (
        f"**{model} in int8 is not quite {model} in float32:** the likeliest"
        f" token is the same at {shares['int8']} of places (bfloat16: {shares['bfloat16']})."
    )


def _summaries(measured: MeasuredRun, temperature: float) -> list[Summary]:
    return summaries(
        [record for record in measured.records if record.temperature == temperature], measured.run
    )


def _sampled(temperature: float) -> str:
    return f"T = {temperature:g}" if temperature else "greedy"


def _peer(each: Summary) -> str:
    return f"{each.method.removeprefix('peer:')} with {each.at}"
