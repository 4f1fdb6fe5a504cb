"""A forward pass tells where its time went, and is the same with the clock on."""

import time

import pytest
import torch

from draftwood.costs.phases import PARTS, PhaseClock, measure_phases
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.lean.model import LeanModel

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
PROMPT = [node % 60 for node in range(400)]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("draftwood.models.native.model.threads", lambda: request.param)
    return request.param


def test_the_parts_of_each_thread_add_up_to_the_time_of_the_pass(threads: int) -> None:
    model = NativeModel(tiny_llama(0, layers=4))
    model.start().extend(PROMPT)
    clock = PhaseClock()
    model.clock = clock.next_run
    since = time.perf_counter()
    model.start().extend(PROMPT)
    wall = time.perf_counter() - since
    [run] = clock.runs
    assert run.shape == (threads, len(PARTS))
    assert (run >= 0).all()
    in_all = run.sum(1)
    assert in_all == pytest.approx(in_all[0], rel=1e-7)
    # little is done outside
    assert 0.5 * wall < float(in_all[0]) <= wall
    products, attention, norms, waiting = run.sum(0).tolist()
    assert min(products, attention, norms) > 0
    assert attention > norms  # 400 rows see up to 400 places
    assert waiting < products + attention + norms or threads > 1


def test_the_clock_changes_no_bit(threads: int) -> None:
    model = NativeModel(tiny_llama(0, layers=4))
    off, on = model.start(), model.start()
    plain = [off.extend(PROMPT).logits, off.forward(DraftTree.chain([3, 1, 4])).logits]
    clock = PhaseClock()
    model.clock = clock.next_run
    timed = [on.extend(PROMPT).logits, on.forward(DraftTree.chain([3, 1, 4])).logits]
    assert all(map(torch.equal, plain, timed))
    assert len(clock.runs) == 2


def test_the_median_is_one_run_and_needs_one() -> None:
    clock = PhaseClock()
    with pytest.raises(ValueError, match="has seen no forward pass; make one first"):
        clock.median()
    clock.runs = [torch.full((1, 4), seconds) for seconds in (5.0, 1.0, 2.0)]
    assert clock.median().tolist() == [[2.0] * 4]


def test_sizes_are_measured_and_the_clock_is_off_again() -> None:
    model = NativeModel(tiny_llama(0, context=64))
    found = measure_phases(model, [1, 5], seconds=0.1)
    assert list(found) == [1, 5]
    assert model.clock is None
    assert not model.pool.used
    with pytest.raises(ValueError, match=r"at least one node, the root; got sizes \[0\]"):
        measure_phases(model, [0])
    with pytest.raises(ValueError, match=r"33 nodes do not fit .* 64 tokens behind 32; .* most 32"):
        measure_phases(model, [1, 33])
    with pytest.raises(ValueError, match="only models of the native path"):
        measure_phases(LeanModel(tiny_llama(0)), [1])
