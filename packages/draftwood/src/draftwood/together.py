"""Calls that take turns on one thread, so that what several of them wait for is done at once."""

import sys
import time
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from itertools import accumulate, pairwise
from threading import get_ident
from typing import Any, TypeVar

T = TypeVar("T")
Serve = Callable[[Sequence[Any]], Sequence[Any]]
"""Function that serves several parts at once, with a result for each."""


def run_together(calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run calls that may wait for shared work; return each result, or the error that ended it.

    A call runs until it returns or calls ``wait``. Once all running calls wait, the parts of one
    key are served together, and their calls continue. Calls may run further calls together, which
    then share with those outside too. Where greenlet is not installed, the calls run one after the
    other.
    """
    if len(calls) > 1:
        try:
            from greenlet import greenlet
        except ImportError:
            pass
        else:
            return _take_turns([_Turns(call, greenlet) for call in calls])
    return [_outcome(call) for call in calls]


def results_together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run calls as ``run_together``; raise the error of the first one that failed."""
    outcomes = run_together(calls)
    for each in outcomes:
        if isinstance(each, Exception):
            raise each
    return [each for each in outcomes if not isinstance(each, Exception)]


def wait(key: Hashable, parts: Sequence[Any], serve: Serve, first: bool = False) -> Sequence[Any]:
    """Serve these parts together with parts of other calls with the same key; return the results.

    Outside of ``run_together`` they are served at once. Where serving the parts of several calls
    raises ValueError or MemoryError, nothing may have happened yet: each call's are served again by
    themselves.

    Args:
        key: of what can be served together; the first call's ``serve`` is used.
        first: whether this is served before other keys for which calls wait.
    """
    turns = _CURRENT.get()
    if turns is None or turns.thread != get_ident():
        return serve(parts)
    return turns.wait(_Wanted(key, parts, serve, first))


def clock() -> float:
    """Seconds that go on while this call runs, and by its share while it is served with others."""
    turns = _CURRENT.get()
    return time.perf_counter() - (0.0 if turns is None else turns.away)


@dataclass(frozen=True, eq=False)
class _Wanted:
    key: Hashable
    parts: Sequence[Any]
    serve: Serve
    first: bool


class _Turns:
    """One of several calls, on a stack of its own."""

    def __init__(self, call: Callable[[], Any], greenlet: type[Any]) -> None:
        self.call, self.thread = call, get_ident()
        self.wanted: _Wanted | None = None
        self.outcome: Any = None
        self.away = 0.0  # seconds that were not its own
        self.stack: Any = greenlet(self._run)
        self.stack.gr_context = copy_context()

    def _run(self) -> None:
        _CURRENT.set(self)
        self.outcome = _outcome(self.call)

    def wait(self, wanted: _Wanted) -> Sequence[Any]:
        self.wanted = wanted
        since = time.perf_counter()
        answer, share = _switch(self.stack.parent.switch)
        self.away += time.perf_counter() - since - share
        if isinstance(answer, Exception):
            raise answer
        return answer

    def go_on(self, answer: Sequence[Any] | Exception, share: float) -> None:
        """Resume with the result it waited for, and its share of the seconds."""
        self.wanted = None
        _switch(self.stack.switch, answer, share)

    def end(self) -> None:
        """Unwind a call that has not ended."""
        stack, self.stack = self.stack, None
        if not stack.dead:
            _switch(stack.throw)


_CURRENT: ContextVar[_Turns | None] = ContextVar("call that takes turns", default=None)


def _take_turns(calls: Sequence[_Turns]) -> list[Any]:
    try:
        for each in calls:
            _switch(each.stack.switch)
        while waiting := [each for each in calls if each.wanted is not None]:
            _serve(waiting)
    finally:
        for each in calls:
            each.end()
    return [each.outcome for each in calls]


def _serve(waiting: Sequence[_Turns]) -> None:
    """Serve the calls that wait for one key, and resume them."""
    wanted = [(each, each.wanted) for each in waiting if each.wanted is not None]
    key = max((one for _, one in wanted), key=lambda one: one.first).key
    served = [(each, one) for each, one in wanted if one.key == key]
    since = clock()
    answers = _answers([one for _, one in served])
    share = (clock() - since) / len(served)
    for (each, _), answer in zip(served, answers, strict=True):
        each.go_on(answer, share)


def _answers(wanted: Sequence[_Wanted]) -> list[Sequence[Any] | Exception]:
    """Results for calls that wait for the same key."""
    one = wanted[0]
    parts = [part for each in wanted for part in each.parts]
    try:
        found = wait(one.key, parts, one.serve, one.first)  # with calls outside of these
    except Exception as error:
        if len(wanted) > 1 and isinstance(error, (ValueError, MemoryError)):
            return [_answers([each])[0] for each in wanted]
        return [error for _ in wanted]
    ends = accumulate((len(each.parts) for each in wanted), initial=0)
    return [found[begin:end] for begin, end in pairwise(ends)]


def _outcome(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:
        return error


def _switch(act: Callable[..., Any], *given: Any) -> Any:
    """Run another stack; whether gradients are recorded is each stack's own affair."""
    torch = sys.modules.get("torch")
    if torch is None:
        return act(*given)
    records = torch.is_grad_enabled()
    try:
        return act(*given)
    finally:
        torch.set_grad_enabled(records)
