"""Calls that take turns: what they wait for is done at once, and none disturbs another."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial

import pytest
import torch

from draftwood.together import clock, results_together, run_together, wait


class Doubling:
    """Stand-in for a shared pass; notes the parts of each.

    Args:
        fails: with which parts a pass fails, and how.
    """

    def __init__(self, fails: dict[int, type[BaseException]] | None = None) -> None:
        self.passes: list[list[int]] = []
        self.fails = fails or {}

    def __call__(self, parts: Sequence[int]) -> list[int]:
        self.passes.append(list(parts))
        for part in parts:
            if part in self.fails:
                raise self.fails[part](part)
        return [2 * part for part in parts]


def doubled(serve: Doubling, start: int, times: int, key: str = "key") -> list[int]:
    """Doubles a number and its successor some times."""
    numbers = [start, start + 1]
    for _ in range(times):
        numbers = list(wait(key, numbers, serve))
    return numbers


@pytest.fixture
def greenlets() -> None:
    pytest.importorskip("greenlet")


@pytest.mark.usefixtures("greenlets")
def test_calls_share_each_pass_until_their_ends() -> None:
    serve = Doubling()
    found = run_together([partial(doubled, serve, n, times) for n, times in ((1, 3), (5, 1))])
    assert found == [[8, 16], [10, 12]]
    assert serve.passes == [[1, 2, 5, 6], [2, 4], [4, 8]]


def test_outside_of_a_run_and_alone_nothing_is_waited_for() -> None:
    serve = Doubling()
    assert doubled(serve, 3, 2) == [12, 16]
    assert run_together([partial(doubled, serve, 3, 2)]) == [[12, 16]]
    assert serve.passes == [[3, 4], [6, 8]] * 2
    assert run_together([]) == []


def test_without_greenlet_calls_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", None)
    serve = Doubling({9: ValueError})
    one, two, three = run_together([partial(doubled, serve, n, 1) for n in (1, 9, 3)])
    assert (one, three) == ([2, 4], [6, 8])
    assert isinstance(two, ValueError)
    assert serve.passes == [[1, 2], [9, 10], [3, 4]]


@pytest.mark.usefixtures("greenlets")
def test_an_error_ends_its_own_call() -> None:
    serve = Doubling()

    def broken() -> list[int]:
        doubled(serve, 7, 1)
        raise KeyError("mine")

    calls = [partial(doubled, serve, 1, 2), broken, partial(doubled, serve, 3, 2)]
    found = run_together(calls)
    assert (found[0], found[2]) == ([4, 8], [12, 16])
    assert isinstance(found[1], KeyError)
    assert serve.passes == [[1, 2, 7, 8, 3, 4], [2, 4, 6, 8]]
    with pytest.raises(KeyError, match="mine"):
        results_together(calls)
    assert results_together(calls[:1]) == [[4, 8]]


@pytest.mark.usefixtures("greenlets")
@pytest.mark.parametrize("error", [ValueError, MemoryError])
def test_a_pass_that_did_not_begin_is_made_for_each(error: type[Exception]) -> None:
    serve = Doubling({51: error})
    found = run_together([partial(doubled, serve, n, 2) for n in (1, 50, 3)])
    assert (found[0], found[2]) == ([4, 8], [12, 16])
    assert isinstance(found[1], error)
    assert serve.passes == [[1, 2, 50, 51, 3, 4], [1, 2], [50, 51], [3, 4], [2, 4, 6, 8]]


@pytest.mark.usefixtures("greenlets")
def test_a_pass_that_fails_in_its_midst_ends_all_that_waited_for_it() -> None:
    serve = Doubling({6: RuntimeError})

    def catches() -> str:
        try:
            doubled(serve, 1, 1)
        except RuntimeError:
            return "caught"
        return "missed"

    found = run_together([catches, partial(doubled, serve, 5, 1), lambda: 3])
    assert found[0] == "caught"
    assert isinstance(found[1], RuntimeError)
    assert found[2] == 3
    assert serve.passes == [[1, 2, 5, 6]]


@pytest.mark.usefixtures("greenlets")
def test_an_interrupt_unwinds_all_calls() -> None:
    unwound = []

    def call(number: int) -> None:
        try:
            doubled(Doubling({1: KeyboardInterrupt}), number, 1)
        finally:
            unwound.append(number)

    with pytest.raises(KeyboardInterrupt):
        run_together([partial(call, number) for number in (0, 4)])
    assert unwound == [0, 4]


@pytest.mark.usefixtures("greenlets")
def test_runs_within_runs_share_passes_with_those_outside() -> None:
    serve = Doubling({30: ValueError})

    def inner() -> list[list[int] | Exception]:
        return run_together([partial(doubled, serve, n, 1) for n in (3, 30)])

    found = run_together([partial(doubled, serve, 1, 1), inner])
    assert found[0] == [2, 4]
    assert isinstance(found[1], list)
    assert found[1][0] == [6, 8]
    assert isinstance(found[1][1], ValueError)
    assert serve.passes == [[1, 2, 3, 4, 30, 31], [1, 2], [3, 4, 30, 31], [3, 4], [30, 31]]


@pytest.mark.usefixtures("greenlets")
def test_other_keys_are_served_apart_and_the_first_one_first() -> None:
    late, first = Doubling(), Doubling()

    def both(number: int, times: int) -> int:
        for _ in range(times):
            (number,) = wait("first", [number], first, first=True)
        return wait("late", [number], late)[0]

    assert run_together([partial(both, 1, 1), partial(both, 5, 3)]) == [4, 80]
    assert first.passes == [[1, 5], [10], [20]]
    assert late.passes == [[2, 40]]


@pytest.mark.usefixtures("greenlets")
def test_each_call_has_its_own_grad_mode_and_context() -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def call(number: int, records: bool) -> tuple[bool, int]:
        variable.set(number)
        with torch.set_grad_enabled(records):
            doubled(Doubling(), 1, number)  # the others end within it
            return torch.is_grad_enabled(), variable.get()

    cases = [(3, False), (1, True), (2, False)]
    assert run_together([partial(call, *case) for case in cases]) == [
        (records, number) for number, records in cases
    ]
    assert torch.is_grad_enabled()
    assert variable.get() == 0


@pytest.mark.usefixtures("greenlets")
def test_the_clock_leaves_out_what_others_do() -> None:
    def serve(parts: Sequence[int]) -> Sequence[int]:
        time.sleep(0.2)
        return parts

    def call(seconds: float) -> float:
        since = clock()
        time.sleep(seconds)
        wait("key", [1], serve)
        return clock() - since

    since = time.perf_counter()
    quick, slow = results_together([partial(call, 0.0), partial(call, 0.3)])
    passed = time.perf_counter() - since
    assert quick >= 0.1
    assert slow >= 0.4
    assert slow - quick > 0.2  # the other's sleep is not in the quick one's
    assert quick + slow <= passed  # nothing counts twice


@pytest.mark.usefixtures("greenlets")
def test_another_thread_does_not_take_turns_with_these_calls() -> None:
    serve, found = Doubling(), []

    def call(number: int) -> None:
        thread = threading.Thread(target=lambda: found.append(doubled(serve, number, 1)))
        thread.start()
        thread.join()

    calls: list[Callable[[], None]] = [partial(call, number) for number in (1, 3)]
    assert run_together(calls) == [None, None]
    assert found == [[2, 4], [6, 8]]
    assert serve.passes == [[1, 2], [3, 4]]
