"""The ten lines on top of the page of results."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.json_lines import RESULTS, read
from benchmarks.pages import servers, trees
from benchmarks.pages.runs import STATED, measured
from benchmarks.training import growth
from draftwood_bench.report.headlines import (
    method_sentences,
    peer_sentences,
    quality_sentences,
    speed_sentences,
)
from draftwood_bench.report.reading import MeasuredRun

LINES = 10
NO_GPU = (
    "**Nothing here has run on a GPU.** The CUDA path is tested on CPUs, except for recording its"
    " graphs."
)


def lines(results: Path = RESULTS) -> str:
    """Say what records of no dirty commit show; a line without its record is left out."""
    found = [*_lines(results)][: LINES - 1]
    return "\n".join(f"- {sentence}" for sentence in [*found, NO_GPU])


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
    yield from _data()
    yield from servers.told()


def identity(results: Path = RESULTS) -> list[str]:
    """Greedy texts compared with plain decoding's, one record for each pair of parts."""
    found = read(results / "identity.jsonl")
    texts, same = (sum(each[name] for each in found) for name in ("prompts", "same"))
    return [
        f"**Greedy identity in float32:** {same} of {texts} texts are plain decoding's, by"
        f" {len(found)} pairs of draft tree and verifier."
    ] * bool(found)


def _data() -> list[str]:
    rows = growth.rows() if read(growth.RECORDS) else []
    told = [f"{row['ten times the']}: {row['adds']}" for row in rows if "T = 0" in str(row)]
    return [
        f"**Heads at small scale,** tokens per pass that ten times as much adds: {'; '.join(told)}."
    ] * bool(told)
