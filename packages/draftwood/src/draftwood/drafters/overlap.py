"""Overlap of drafts and passes of the target, and the thread in which drafts are made."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from draftwood.drafters.resources import Need
from draftwood.native.threads import (
    MOST,
    cpus,
    lift_limit,
    limit_others,
    of_quota,
    threads_of_torch_kept,
    usable,
    work_beside,
)
from draftwood.validation import require_whole

if TYPE_CHECKING:
    from draftwood.models.model import Device

PreVerify = Literal["auto", "always", "never"]


class SideThread:
    """A thread that is there as long as some text drafts in it.

    Calls run one after the other. Nothing here ever waits for a call, as the garbage collector may
    end a text at any time, in this thread too.

    Args:
        threads: of the library and of PyTorch for what is called.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.RLock()  # the collector may come while it is held
        self._texts = 0
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def enter(self) -> int:
        """A text begins; the first one starts the thread. Gives the process that it began in."""
        with self._lock:
            if self._process != os.getpid():  # of a fork, which has none of its parent's threads
                self._process, self._texts, self._pool = os.getpid(), 0, None
            if self._pool is None:
                self._pool = self._started()
            self._texts += 1
            return self._process

    def leave(self, process: int) -> None:
        """A text that began in this process has ended; with the last one the thread ends."""
        if process != os.getpid():  # a fork's copy of its parent's text
            return
        with self._lock:
            self._texts -= 1
            if self._texts == 0 and self._pool is not None:
                pool, self._pool = self._pool, None
                pool.shutdown(wait=False)

    def call(self, act: Callable[[], None]) -> "Future[None]":
        """Let the thread call something, once it has done what came before."""
        assert self._pool is not None  # the text has entered
        return self._pool.submit(act)

    def call_beside(self, act: Callable[[], None], others: int | None = None) -> "Future[None]":
        """Let the thread call something while other threads' passes have fewer threads.

        Args:
            others: so many; None leaves them what this thread does not take.
        """
        most = max(1, usable() - self.threads) if others is None else others
        limit_others(most)
        try:
            future = self.call(act)
        except BaseException:
            lift_limit(most)
            raise
        future.add_done_callback(lambda _: lift_limit(most))
        return future

    def _started(self) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(1, "draftwood-drafts")
        try:
            with threads_of_torch_kept():
                pool.submit(work_beside, self.threads).result()
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return pool


@dataclass(frozen=True)
class Overlap:
    """Settings of how drafts and passes of the target overlap.

    PEARL (Liu et al. 2024, arXiv:2408.11850). Post-verify: while a tree is verified, the trees that
    would follow its likeliest outcomes are drafted. Pre-verify: where none of them came true, the
    target runs the root while the tree below is drafted, and the rest of the tree only where a
    child of the root is accepted.

    Differs from the paper: several outcomes of a pass are prepared, as in Saguaro (2026,
    arXiv:2603.03251); the token after the accepted ones is the target's own; every verdict is the
    one without overlap, so texts are the same.

    Args:
        outcomes: of each pass, for which trees are drafted ahead, likeliest first; their passes of
            the draft model are shared.
        pre_verify: when the root is run by itself; ``auto`` where that saves time by what passes
            and drafts took so far.
        draft_threads: of drafting beside the target, on a CPU.
        target_threads: of a target on the native path meanwhile; None leaves it the others.

    Attributes:
        thread: in which all texts with these settings draft.

    Raises:
        ValueError: for a value outside its range.
    """

    outcomes: int = 4
    pre_verify: PreVerify = "auto"
    draft_threads: int = 1
    target_threads: int | None = None
    thread: SideThread = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {"outcomes": self.outcomes, "draft_threads": self.draft_threads}
        if self.target_threads is not None:
            numbers["target_threads"] = self.target_threads
        for name, value in numbers.items():
            least = 0 if name == "outcomes" else 1
            require_whole(name, value, f"a whole number >= {least}")
            if not least <= value <= MOST:
                raise ValueError(f"{name} must be from {least} to {MOST}, got {value}")
        if self.pre_verify not in get_args(PreVerify):
            raise ValueError(
                f"pre_verify must be {', '.join(get_args(PreVerify))}, got {self.pre_verify!r}"
            )
        object.__setattr__(self, "thread", SideThread(self.draft_threads))

    @property
    def others(self) -> int:
        """Threads of the target while something is drafted."""
        return self.target_threads or max(1, usable() - self.draft_threads)


def require_places(target: "Device", draft: "Device", overlap: Overlap) -> None:
    """Raise ValueError unless drafts and passes can go on at the same time."""
    if target.type == draft.type == "cpu":
        if overlap.target_threads is None and min(cpus(), of_quota()) < 2:
            raise ValueError(
                "overlap needs a core for the target and one for what drafts, and this process has"
                " a single one; leave overlap out"
            )
    elif target == draft:
        raise ValueError(
            f"overlap needs a device for the target and another one for what drafts, and both are"
            f" on {target}; load the draft model on the CPU or a second device, or leave overlap"
            " out"
        )


_NOT_AHEAD: Mapping[Need, str] = {
    "layers": "drafts with parts of the target itself, which are at work in its passes",
    "head": "reads the target's hidden states, which are there only after its passes",
    "draft-model": "learns from its drafts, so that none can be taken back",
}
_FREE = "has drafts that cost next to nothing, so that there is nothing to hide"


class AsksAhead(Protocol):
    """A method or a drafter, as it tells what it needs."""

    @property
    def drafts_ahead(self) -> bool: ...

    @property
    def needs(self) -> frozenset[Need]: ...


def require_ahead(name: str, method: AsksAhead) -> None:
    """Refuse to overlap drafts and passes where a method's drafts cannot be made meanwhile.

    Raises:
        ValueError: with the reason.
    """
    if method.drafts_ahead:
        return
    why = next((why for need, why in _NOT_AHEAD.items() if need in method.needs), _FREE)
    raise ValueError(
        f"method {name!r} {why}; leave overlap out, or choose a method that drafts with a draft"
        " model alone, for instance rsd-s"
    )
