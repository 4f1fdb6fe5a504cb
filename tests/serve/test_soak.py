"""The soak test's own short form, and that it can fail."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from local_server import running

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("soak")
    for name in ("soak", "event_reader"):
        sys.modules.pop(name, None)


def test_a_few_seconds_at_twice_the_capacity(
    tiny: str, script: ModuleType, unchecked: None
) -> None:
    import asyncio

    with running(tiny, max_batch=4, max_queue=2) as server:
        known = script.alone(server.address, script.requests(10, 40))
        counts = asyncio.run(script.drive(server.address, known, 8, seconds=6.0))
        assert counts.faults == []
        assert {"whole", "left", "killed"} <= set(counts.by_end)
        assert counts.by_end["whole"] > 10
        assert script.idle(server.address)
        assert script.alone(server.address, script.requests(10, 40)[:4]) == known[:4]


def test_events_are_read_in_whatever_pieces_they_come(script: ModuleType) -> None:
    told = b'data: {"n": 1}\n\ndata: {"n": "\xc3\xa9"}\n\ndata: [DONE]\n\n'
    for size in (1, 2, 7, len(told)):
        reader = script.EventReader()
        pieces = [told[place : place + size] for place in range(0, len(told), size)]
        assert [event["n"] for piece in pieces for event in reader.read(piece)] == [1, "é"]
        assert reader.ended
    cut = script.EventReader()
    assert len(cut.read(told.removesuffix(b"data: [DONE]\n\n"))) == 2
    assert not cut.ended
    with pytest.raises(OSError, match=r"broke off: .*replica_lost"):
        cut.read(b'data: {"error": {"code": "replica_lost"}}\n\n')


def test_a_mixed_up_answer_is_found(tiny: str, script: ModuleType, unchecked: None) -> None:
    import asyncio
    from dataclasses import replace

    with running(tiny, max_batch=4, max_queue=2) as server:
        known = script.alone(server.address, script.requests(4, 20))
        mixed = [replace(each, texts=[*each.texts[:-1], "x"]) for each in known]
        counts = asyncio.run(script.drive(server.address, mixed, 4, seconds=2.0))
        assert any("another answer" in fault for fault in counts.faults)
