"""Tables and sentences of records of servers."""

from benchmarks.serving.show import sentences, tables


def streams(system: str, speed: float, turn: int = 0, count: int = 1) -> dict:
    return {"system": system, "streams": count, "round": turn, "tokens_per_second": speed}


def test_sentences_follow_the_records_that_are_there() -> None:
    run = [
        *(streams("draftwood", 300.0), streams("draftwood-plain", 200.0)),
        *(streams("draftwood", 110.0, 1), streams("draftwood-plain", 100.0, 1)),
        *(streams("draftwood", 90.0, 0, 2), streams("vllm", 100.0, 0, 2)),  # not beside plain
    ]
    further = [
        {"figure": "one-stream", "round": turn, "ratio": ratio, "model": "smollm2-135m"}
        for turn, ratio in enumerate((0.95, 0.97))
    ]
    assert sentences(run, further) == [
        "**1 stream:** `auto` writes 1.30 (1.10 to 1.50) times the tokens per second of plain"
        " decoding.",
        "**One stream over HTTP** keeps 0.96 (0.95 to 0.97) of the speed in process.",
    ]
    assert sentences([], []) == []
    assert tables([], []) == "Nothing was measured yet."


def test_a_figure_is_told_of_its_newest_run() -> None:
    def row(turn: int, share: float, commit: str) -> dict[str, object]:
        told = {"figure": "one-stream", "round": turn, "ratio": share, "model": "smollm2-135m"}
        return {**told, "commit": commit, "processor": "one"}

    older, newer = [row(0, 0.5, "a"), row(1, 0.6, "a")], [row(0, 0.9, "b")]
    assert sentences([], older + newer) == sentences([], newer)
    assert sentences([], older + newer) != sentences([], older)
