"""The schedule of a team of threads: known answers, real tasks, and texts that no split changes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cores
from benchmarks.common import schedule
from benchmarks.common.json_lines import append
from draftwood.models.native import NativeModel
from draftwood.native.library import available
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree

NATIVE = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


@pytest.mark.parametrize(
    ("tasks", "threads", "seconds"),
    [
        ([1.0, 2.0, 3.0], 1, 6.0),
        ([1.0] * 6, 3, 2.0),
        # the second thread does its three, then one of the first's that is still there
        ([4.0, 1.0, 1.0, 1.0, 1.0], 2, 4.0),
        # nobody takes what has been begun: the last task of a share may be the longest
        ([1.0, 1.0, 1.0, 9.0], 2, 10.0),
        ([2.0, 1.0], 8, 2.0),
    ],
)
def test_the_last_task_of_a_phase_ends_when_it_must(
    tasks: Sequence[float], threads: int, seconds: float
) -> None:
    assert schedule.finish(tasks, threads) == seconds


def test_a_pass_is_foretold_part_by_part() -> None:
    found = schedule.foretell([[5.0], [1.0] * 4, [3.0, 1.0]], 2, opening=0.25)
    assert found == schedule.Foretold(busy=4.0, uneven=1.0, alone=5.0, opening=0.5)
    assert found.seconds == 10.5
    assert found.serial == pytest.approx(5.5 / 10.5)
    many = schedule.foretell([[5.0], [1.0] * 4, [3.0, 1.0]], 64)
    assert many.seconds == pytest.approx(5 + 1 + 3)  # what cannot be shared is left


@pytest.fixture
def model() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=3))


@NATIVE
def test_a_pass_split_for_any_number_of_threads_has_the_same_bits(model: NativeModel) -> None:
    tree, sizes = DraftTree.chain([5, 17, 30, 22, 9]), list[int]()
    session = model.start()
    session.extend([3, 1, 4, 1, 5, 9, 2, 6] * 4)
    expected = session.forward(tree).logits
    for threads in (1, 2, 7, 16):
        with schedule.traced(model, threads) as trace:
            for _ in range(3):
                assert np.array_equal(session.forward(tree).logits, expected), threads
                trace.keep()
        phases = trace.typical()
        sizes.append(max(map(len, phases)))
        assert all(seconds > 0 for tasks in phases for seconds in tasks)
        assert (sizes[-1] == 1) == (threads == 1)
    assert model.clock is None
    assert sizes == sorted(sizes)


@NATIVE
def test_a_trace_without_room_is_refused(
    model: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "ROOM", 3)
    session = model.start()
    with schedule.traced(model, 2) as trace:
        session.extend([3, 1, 4])
        with pytest.raises(ValueError, match="a trace has room for 3; split it for fewer threads"):
            trace.keep()


@NATIVE
def test_a_sweep_is_recorded_and_shown(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "FORETOLD", (2, 32))
    output = tmp_path / "cores.jsonl"
    cores.run([target], [1, 2, 3], 1, cores.LINE, output)
    rows = cores.rows(output)
    assert [row["threads"] for row in rows] == ["1", "2", "3", "32"] * len(cores.NODES)
    one, two, three, many = rows[:4]
    assert (one["over one"], one["foretold"]) == ("1.00", "")
    assert two["seen"].endswith(" ms")
    assert two["foretold"].endswith(" ms")
    assert three["foretold"] == many["seen"] == ""
    assert many["memory"].endswith(" GB/s")


def test_figures_without_one_thread_tell_no_ratio(tmp_path: Path) -> None:
    output = tmp_path / "cores.jsonl"
    append(output, {"model": "m", "nodes": 1, "threads": 2, "seconds": 0.5})
    assert cores.rows(output)[0]["over one"] == ""
