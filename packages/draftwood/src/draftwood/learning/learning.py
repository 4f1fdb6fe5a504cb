"""Learning beside decoding: buffer, idle thread, and the swap of heads between texts."""

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.heads.trained import TrainedHead
from draftwood.learning.buffer import LearningBuffer
from draftwood.learning.folder import LearningFolder
from draftwood.learning.idle import EndedError, IdleGate
from draftwood.learning.learner import Learner, Pause, is_better, make_learner
from draftwood.learning.texts import WatchedText
from draftwood.learning.watching import Watch, WatchedSession
from draftwood.models.fingerprint import adapter_of
from draftwood.models.model import InProcess, Model
from draftwood.native.threads import threads_of_torch_kept, work_beside
from draftwood.sampling import MaskedSampler, Sampling
from draftwood.validation import require_count

MEMORY = 256 * 2**20
"""Bytes of a buffer, where nothing else is said."""
ROUND_ROWS = 2048
"""New rows of answers after which a round begins: fewer tell too little of what is better."""
LEAST_JUDGED = 128
"""Rows of answers held out below which no round begins: new weights would be judged by chance."""


class Follower(Protocol):
    """A user of the head, told when another one takes over."""

    def adopt(self, trained: TrainedHead) -> None:
        """Draft with this head from the next text on."""
        ...


@dataclass(frozen=True)
class LearningStatus:
    """Counts of a ``Learning``.

    Attributes:
        texts, rows, memory: in the buffer; rows of answers, and bytes.
        steps: small steps of training.
        swaps: rounds whose weights took over.
        drops: rounds whose weights were not better.
        error: reason why it does not learn any more, learns nothing of texts that the buffer has no
            room for, or keeps nothing on disk; None for none.
    """

    texts: int
    rows: int
    memory: int
    steps: int
    swaps: int
    drops: int
    error: str | None


class Learning(InProcess):
    """A head that learns from its rejected drafts (OSD, Liu et al. 2023, arXiv:2310.07177).

    Texts that ended come into a bounded buffer. While nothing runs, a thread at low priority trains
    a copy of the head on them. The copy takes over between texts, and only where it is better on
    the newest tenth of the buffer, which it was not trained on, by more than chance; else it is
    dropped.

    Where nobody holds it any more, it ends as with ``close``.

    Differs from the paper: rejected places count most but not alone, so that what was right stays
    right; the learner keeps weights near those at the beginning.

    Args:
        target: whose texts are watched.
        trained: the head at the beginning.
        learner: trains it; None takes the one of an installed package.
        memory: most bytes of the buffer.
        folder: keeps the buffer and the head that was learnt; None writes nothing.
        round_rows: new rows of answers after which a round begins.
        gate: held by whatever learning has to wait for.
        least_judged: rows of answers held out below which no round begins.

    Attributes:
        given: the head at the beginning.
        unlearnt: the head before any learning; another one where this went on from one in memory.
        trained: the head in use.
        buffer: of watched texts.
        say: takes a line about a failure, once; warns where nobody else listens.

    Raises:
        ImportError: where no package trains heads.
        TypeError: for sizes that are no whole numbers.
        ValueError: for sizes below 1, a head that cannot learn, and a folder that is not whole or
            of another head.
        OSError: where the disk refuses the folder.
    """

    def __init__(
        self,
        target: Model,
        trained: TrainedHead,
        learner: Learner | None = None,
        memory: int = MEMORY,
        folder: Path | None = None,
        round_rows: int = ROUND_ROWS,
        gate: IdleGate | None = None,
        least_judged: int = LEAST_JUDGED,
    ) -> None:
        if target.device.type != "cpu":
            raise ValueError(f"heads learn beside CPUs, and this model is on {target.device.type}")
        sizes = {"memory": memory, "round_rows": round_rows, "least_judged": least_judged}
        for name, size in sizes.items():
            require_count(name, size)
        self.given = self.trained = self.unlearnt = trained
        self.target, self.round_rows = target, round_rows
        self.least_judged = least_judged
        self.buffer = LearningBuffer(memory)
        self.learner = learner or make_learner(trained, target)
        self.gate = gate or IdleGate()
        self.say: Callable[[str], None] = lambda line: warnings.warn(line, stacklevel=2)
        self._followers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._trained_on: weakref.WeakSet[WatchedText] = weakref.WeakSet()
        self._turn = threading.Lock()
        self._came = SimpleQueue[None]()  # a finalizer may put at any point; an event may lock up
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._swaps = self._drops = self._read = 0
        self._error: str | None = None
        self._ended = self._is_too_small = False
        self._folder = None if folder is None else self._opened(folder)
        self._at_exit = partial(_close, weakref.ref(self))
        wake = partial(self._came.put, None)
        kept = (self._folder, self.buffer, self._trained_on)
        self._finalizer = weakref.finalize(self, _end, self._at_exit, self.gate, wake, *kept)
        self._finalizer.atexit = False

    @classmethod
    def behind(
        cls,
        before: "Learning | None",
        target: Model,
        trained: TrainedHead,
        folder: Path | None,
        **settings: Any,
    ) -> "Learning":
        """Begin in the place of another one, which ends; where this fails it goes on.

        A folder goes on from the head in it, so it is given the one before any learning. The folder
        of the other one is free only when that has ended.

        Args:
            before: the other one; None where nothing learnt before.
            trained: the head in use.
            settings: of the class.
        """
        if before is None:
            return cls(target, trained, folder=folder, **settings)
        goes_on = trained is before.trained  # else somebody gave the user another head
        first = before.unlearnt if goes_on else trained
        if before.is_in(folder):
            before.close()
        made = cls(target, trained if folder is None else first, folder=folder, **settings)
        before.close()
        made.unlearnt = first
        if goes_on and folder is None:  # it may have learnt meanwhile
            made.given = made.trained = before.trained
        return made

    def is_in(self, folder: Path | None) -> bool:
        """True for the folder that keeps this one's buffer."""
        own = None if self._folder is None else self._folder.folder
        return own is not None and folder is not None and own.resolve() == folder.resolve()

    def _opened(self, folder: Path) -> LearningFolder:
        found = LearningFolder(folder, self.trained, adapter_of(self.target))
        try:
            self._read_from(found)
        except BaseException:
            found.close()
            raise
        return found

    def _read_from(self, found: LearningFolder) -> None:
        """Go on with the buffer and the head of a folder."""
        if found.outdated:
            self.say(
                f"the head in {found.folder} was learnt from another one than is given now, so it"
                " is dropped; its texts are kept, and learnt from again"
            )
        for text in found.read():
            self.buffer.add(text)
            if found.is_trained_on(text):
                self._trained_on.add(text)
        if (head := found.head()) is not None:
            self.trained = head
        new = (text for text in self.buffer.texts if text not in self._trained_on)
        self._read = self.buffer.added - sum(text.answer_rows for text in new)

    def follow(self, user: Follower) -> None:
        """Let a user of the head have each new one; it is forgotten when nothing else holds it."""
        self._followers.add(user)
        while self._swaps or self._folder is not None:
            trained = self.trained
            user.adopt(trained)
            if trained is self.trained:  # else another one took over meanwhile
                return

    def watch(self, session: DraftSession, request: DraftRequest) -> DraftSession:
        """Watch the text of a request, as long as anything is learnt of it.

        The first one starts the thread. A sampler of another kind than ``Sampling`` has no
        temperature at which drafts could be judged, so nothing is learnt of its texts.
        """
        sampler = request.sampler
        plain = sampler.unmasked if isinstance(sampler, MaskedSampler) else sampler
        if self._ended or not isinstance(plain, Sampling):
            return session
        with self._starting:
            if self._thread is None:
                self._thread = self._started()
        reads, layers = self.trained.config.reads, self.target.layers
        return WatchedSession(
            session, Watch(reads, layers, plain.temperature, self.take, self.gate)
        )

    def take(self, text: WatchedText) -> None:
        """Take a text into the buffer.

        The garbage collector may end a text anywhere, so this waits for no lock.
        """
        self.buffer.add(text)
        self._came.put(None)

    def _started(self) -> threading.Thread:
        """Start the thread, whose one core is its own choice and nobody else's."""
        ready = threading.Event()
        # a thread that is at work when Python ends aborts the process
        atexit.register(self._at_exit)
        given = (weakref.ref(self), self._came, self.gate, ready)
        run = threading.Thread(target=_run, args=given, name="draftwood-learning", daemon=True)
        with threads_of_torch_kept():
            run.start()
            ready.wait()
        return run

    @property
    def status(self) -> LearningStatus:
        buffer = self.buffer
        return LearningStatus(
            texts=len(buffer.texts),
            rows=buffer.rows,
            memory=buffer.memory,
            steps=self.learner.steps,
            swaps=self._swaps,
            drops=self._drops,
            error=self._error,
        )

    def catch_up(self) -> None:
        """Learn in this thread, without waiting for anything, from all that came since."""
        with self._turn:
            if self.buffer.added > self._read:
                self._round(lambda: None)

    def close(self) -> None:
        """End the thread and keep the buffer, where it has a folder; the head stays in use."""
        self._ended = True
        self.gate.close()
        self._came.put(None)
        if self._thread is not None:
            self._thread.join()
        self._keep()
        if self._folder is not None:
            self._folder.close()
        atexit.unregister(self._at_exit)
        self._finalizer.detach()

    def __enter__(self) -> "Learning":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def go_on(self) -> bool:
        """Keep what came, and train on it where it is enough; False once learning has ended.

        Raises:
            EndedError: where it ends meanwhile.
        """
        if not self._ended:
            self._keep()
            self._tell_too_small()
        while self.buffer.added - self._read >= self.round_rows and not self._ended:
            with self._turn:
                self._round(self.gate.pause)
        return not self._ended

    def _round(self, pause: Pause) -> None:
        """Train a copy of the head, and let it take over where it is better."""
        self._read = self.buffer.added
        older, newest = self.buffer.split()
        new = [text for text in older if text not in self._trained_on]
        if not new or sum(text.answer_rows for text in newest) < self.least_judged:
            return  # what is new waits for the next round
        old = [text for text in older if text in self._trained_on]
        try:
            own = self.trained.weights
            found = self.learner.train(own, new, old, pause)
            before, after = (self.learner.judge(each, newest, pause) for each in (own, found))
            pause()
            self._trained_on.update(new)
            if is_better(before, after):
                self._swap(replace(self.trained, weights=found))
            else:
                self._drops += 1
        except EndedError:
            raise
        except Exception as error:  # texts go on whatever a learner does
            self._fail(f"the head learns no more: {error}")

    def _tell_too_small(self) -> None:
        """Tell, once, that the buffer is too small for what is to be learnt."""
        buffer, least = self.buffer, self.least_judged
        held_out = sum(text.answer_rows for text in buffer.split()[1])
        if self._is_too_small or not (
            buffer.largest_missed or (buffer.is_full and held_out < least)
        ):
            return
        self._is_too_small = True
        why = (
            f"a text of {buffer.largest_missed} bytes does not fit, and nothing is learnt of it"
            if buffer.largest_missed
            else f"it holds out {held_out} rows of answers, and nothing is learnt below {least}"
        )
        self._tell(f"the buffer of {buffer.limit} bytes is too small: {why}; give it more memory")

    def _swap(self, trained: TrainedHead) -> None:
        """Give the new head to those who start texts; texts under way keep theirs."""
        self.trained = trained  # first, for those who begin to follow meanwhile
        self._swaps += 1
        for user in list(self._followers):
            user.adopt(trained)
        if self._folder is not None:
            self._write(lambda folder: folder.keep_head(trained))

    def _keep(self) -> None:
        self._write(lambda folder: folder.keep(self.buffer.texts, self._trained_on))

    def _write(self, act: Callable[[LearningFolder], None]) -> None:
        """Write to the folder; where the disk refuses, go on in memory."""
        folder = self._folder
        if folder is None or not folder.is_open:
            return
        try:
            act(folder)
        except OSError as error:
            folder.close()
            self._tell(f"learning goes on in memory: {error}")

    def _fail(self, line: str) -> None:
        self._ended = True
        self._tell(line)

    def _tell(self, line: str) -> None:
        self._error = " ".join(line.split())
        self.say(self._error)


def _run(
    learning: weakref.ref[Learning],
    came: "SimpleQueue[None]",
    gate: IdleGate,
    ready: threading.Event,
) -> None:
    """Learn at low priority from what comes, and hold nobody's ``Learning`` in between."""
    work_beside(1)
    ready.set()
    _lower_priority()
    with suppress(EndedError):
        while True:
            came.get()
            gate.pause()
            own = learning()
            if own is None or not own.go_on():
                return
            del own


def _close(learning: weakref.ref[Learning]) -> None:
    """Close a ``Learning`` that is still there."""
    if (own := learning()) is not None:
        own.close()


def _end(
    at_exit: Callable[[], None],
    gate: IdleGate,
    wake: Callable[[], None],
    folder: LearningFolder | None,
    buffer: LearningBuffer,
    trained_on: Container[WatchedText],
) -> None:
    """End the thread of a ``Learning`` that nobody holds any more, and keep its buffer."""
    atexit.unregister(at_exit)
    gate.close()
    wake()
    if folder is not None and folder.is_open:
        with suppress(OSError):
            folder.keep(buffer.texts, trained_on)
        folder.close()


def _lower_priority() -> None:
    """Let the calling thread run when no other one wants its core, where the system can."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
