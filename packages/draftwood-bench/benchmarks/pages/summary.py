"""The ten lines on top of the page of results."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.json_lines import RESULTS
from benchmarks.pages import servers, trees
from benchmarks.pages.headlines import (
    method_sentences,
    peer_sentences,
    quality_sentences,
    speed_sentences,
)
from benchmarks.pages.runs import STATED, measured
from benchmarks.pages.speed import fastest_peer, peer_name, summaries_at
from draftwood_bench.records.statistics import Summary
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.report.table import number

LINES = 10


def lines(results: Path = RESULTS) -> str:
    """Say what records of no dirty commit show; a line without its record is left out."""
    on_gpu = gpu(results)
    found = [*[*_lines(results)][: LINES - len(on_gpu)], *on_gpu]
    return "\n".join(f"- {sentence}" for sentence in found)


def _lines(results: Path) -> Iterator[str]:
    def of(name: str, sentences: Callable[[MeasuredRun], Sequence[str]]) -> Sequence[str]:
        found = measured(name, results)
        return [] if found is None else sentences(found)

    for name in (STATED, "tinyllama"):
        yield from of(name, lambda run: speed_sentences(run, "auto"))
    yield from of("peers", lambda run: peer_sentences(run, "auto"))
    yield from identity(results)
    yield from trees.summary_line()
    yield from of("methods", lambda run: method_sentences(run)[:1])
    yield from of("quality", quality_sentences)
    yield from servers.told()


def gpu(results: Path = RESULTS) -> list[str]:
    """Tokens per second of whole requests on a GPU, beside the fastest peer's."""
    found = measured("gpu", results)
    if found is None:
        return []
    greedy = summaries_at(found, 0.0)
    known, best = {each.method: each for each in greedy}, fastest_peer(greedy)
    if best is None or not {"auto", "plain"} <= known.keys():
        return []
    own, plain = known["auto"], known["plain"]
    return [
        f"**On an {found.run.hardware['device']}, {found.run.model} in {found.run.dtype}, greedy,"
        f" {own.prompts} prompts:** `auto` writes {_speed(own)} tokens/s in whole requests, plain"
        f" decoding {_speed(plain)}, {peer_name(best)} {_speed(best)}; {own.same} of"
        f" {own.compared} texts are plain decoding's."
    ]


def _speed(each: Summary) -> str:
    return number(each.end_to_end, 0)


def identity(results: Path = RESULTS) -> list[str]:
    """Greedy texts compared with plain decoding's, by pairs of draft tree and verifier."""
    found = measured("identity", results)
    if found is None:
        return []
    pairs = [each for each in summaries_at(found, 0.0) if each.method != "plain"]
    same, texts = (sum(getattr(each, name) or 0 for each in pairs) for name in ("same", "compared"))
    return [
        f"**Greedy identity in {found.run.dtype}:** {same} of {texts} texts are plain decoding's,"
        f" by {len(pairs)} pairs of draft tree and verifier."
    ]
