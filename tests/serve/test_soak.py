"""The soak test's own short form, and that it can fail."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from local_server import running

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("soak", ROOT / "benchmarks" / "soak.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


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


def test_a_mixed_up_answer_is_found(tiny: str, script: ModuleType, unchecked: None) -> None:
    import asyncio
    from dataclasses import replace

    with running(tiny, max_batch=4, max_queue=2) as server:
        known = script.alone(server.address, script.requests(4, 20))
        mixed = [replace(each, texts=[*each.texts[:-1], "x"]) for each in known]
        counts = asyncio.run(script.drive(server.address, mixed, 4, seconds=2.0))
        assert any("another answer" in fault for fault in counts.faults)
