"""The soak test's own short form, and that it can fail."""

import pytest

from benchmarks.serving import soak
from local_server import running


@pytest.mark.proof
def test_a_few_seconds_at_twice_the_capacity(tiny: str, unchecked: None) -> None:
    import asyncio

    with running(tiny, max_batch=4, max_queue=2) as server:
        known = soak.alone(server.address, soak.requests(10, 40))
        counts = asyncio.run(soak.drive(server.address, known, 8, seconds=6.0))
        assert counts.faults == []
        assert {"whole", "left", "killed"} <= set(counts.by_end)
        assert counts.by_end["whole"] > 10
        assert soak.idle(server.address)
        assert soak.alone(server.address, soak.requests(10, 40)[:4]) == known[:4]


def test_events_are_read_in_whatever_pieces_they_come() -> None:
    told = b'data: {"n": 1}\n\ndata: {"n": "\xc3\xa9"}\n\ndata: [DONE]\n\n'
    for size in (1, 2, 7, len(told)):
        reader = soak.EventReader()
        pieces = [told[place : place + size] for place in range(0, len(told), size)]
        assert [event["n"] for piece in pieces for event in reader.read(piece)] == [1, "é"]
        assert reader.ended
    cut = soak.EventReader()
    assert len(cut.read(told.removesuffix(b"data: [DONE]\n\n"))) == 2
    assert not cut.ended
    with pytest.raises(OSError, match=r"broke off: .*replica_lost"):
        cut.read(b'data: {"error": {"code": "replica_lost"}}\n\n')


def test_a_mixed_up_answer_is_found(tiny: str, unchecked: None) -> None:
    import asyncio
    from dataclasses import replace

    with running(tiny, max_batch=4, max_queue=2) as server:
        known = soak.alone(server.address, soak.requests(4, 20))
        mixed = [replace(each, texts=[*each.texts[:-1], "x"]) for each in known]
        counts = asyncio.run(soak.drive(server.address, mixed, 4, seconds=2.0))
        assert any("another answer" in fault for fault in counts.faults)
