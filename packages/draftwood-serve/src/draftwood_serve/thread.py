"""The one thread that loads, measures and runs the model."""

import queue
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from draftwood import engine
from draftwood.learning.learning import Learning
from draftwood.stats import Step
from draftwood_serve.errors import ApiError, broken
from draftwood_serve.jobs import TaskOfJob, TextJob
from draftwood_serve.loaded import LoadedTarget
from draftwood_serve.mailbox import Told
from draftwood_serve.metrics import Metrics
from draftwood_serve.settings import ServeSettings
from draftwood_serve.texts import TextUpdate

IDLE_SECONDS = 2.0
"""Idle seconds before a curve is measured again."""

Value = TypeVar("Value")


class WaitingTask(NamedTuple):
    """A task that waits for room in the batch.

    Attributes:
        turn: place among those of all requests; texts of one request have one after the other.
    """

    turn: int
    job: TextJob
    task: TaskOfJob


class ModelThread:
    """Run the tasks of all requests in one batch, first come first served; requests of many texts
    take turns with those that came behind them.

    Other threads pass it functions; it passes each step's updates to the requests' event loops, in
    one call for each loop and step.

    Args:
        settings: what to load and how much to run at once.
        metrics: counters that it keeps.
        turns: held during each step and each measurement, where threads of other models are there.
    """

    def __init__(
        self, settings: ServeSettings, metrics: Metrics, turns: "threading.Lock | None" = None
    ) -> None:
        self.settings, self.metrics = settings, metrics
        self._turns = turns or threading.Lock()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: list[WaitingTask] = []  # in the order of their turns
        self._newest_turn = 0  # of the task that began last
        self._running: dict[int, tuple[TextJob, TaskOfJob]] = {}
        self._told: list[tuple[TextJob, Told]] = []
        self._ending = False
        self._learning: Learning | None = None
        self._loaded: Future[LoadedTarget] = Future()
        self._thread = threading.Thread(target=self._run, name="draftwood-model", daemon=True)

    # for other threads

    def start(self) -> "Future[LoadedTarget]":
        """Start loading; the future holds the model, or the error."""
        self._thread.start()
        return self._loaded

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, make: Callable[[LoadedTarget], Value]) -> "Future[Value]":
        """Call a function in the thread between two steps."""
        future: Future[Value] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                with self._turns:
                    future.set_result(make(self._loaded.result()))
            except Exception as error:
                future.set_exception(error)

        self._put(run)
        return future

    def rows_beside(self, most: int, past: int) -> int:
        """Rows of a pass between two steps of texts, which wait for it as for a step.

        Args:
            most: rows that are wanted.
            past: tokens before them.
        """
        pace = self._loaded.result().limits.pace
        return most if pace is None else pace.prompt_rows(self.running_texts, 0, past, most)

    def add(self, job: TextJob) -> None:
        """Queue a request."""
        self._put(lambda: self._add(job))

    def cancel(self, job: TextJob, why: ApiError | None = None) -> None:
        """End a request before its next step; it gets ``why``, or nothing more."""
        self._put(lambda: self._end(job, why))

    def close(self, seconds: float = 10.0) -> None:
        """End all requests and the thread."""
        self._put(self._stop)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _put(self, call: Callable[[], None]) -> None:
        """Have the thread make a call as soon as the pass under way ends."""
        self._inbox.put(call)
        engine.Scheduler.interrupt()

    # for the thread itself

    def _run(self) -> None:
        try:
            target = LoadedTarget(self.settings, self._turns)
            limits = target.limits
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(target)
        self._learn_by(target.learning)
        with closing(engine.Scheduler(limits)) as self._batch:
            while not self._ending:
                self._hear()
                self._admit()
                if self._batch:
                    self._step()
                waiting = sum(len(each.task.choices) for each in self._waiting)
                self.metrics.load(self.running_texts, waiting)
                self._post()
        target.plain.calibration.keep("draftwood serve")
        if self._learning is not None:
            self._learning.close()

    def _learn_by(self, learning: Learning | None) -> None:
        """Hold learning back but while this thread waits for requests."""
        if learning is not None:
            self._learning = learning
            learning.gate.enter()
            self.metrics.follow(learning)

    def _hear(self) -> None:
        """Run calls of other threads; wait for one if there is nothing else to do.

        Those that come meanwhile wait for a step of texts, which they could hold up for ever.
        """
        idle = not self._batch and not self._waiting
        for _ in range(max(1, self._inbox.qsize())):
            try:
                (self._wait() if idle else self._inbox.get(block=False))()
            except queue.Empty:
                return
            idle = False

    def _wait(self) -> Callable[[], None]:
        """Wait for the next call; while none comes, measure a doubtful curve again."""
        models = self._loaded.result().plain.models
        calibration = models.calibration.first_doubtful(models.draft_calibration)
        if calibration is not None:
            with suppress(queue.Empty):
                return self._idle(IDLE_SECONDS)
            calibration.mend(lambda: not self._inbox.empty() or self._turns.locked())
        return self._idle(None)

    def _idle(self, seconds: float | None) -> Callable[[], None]:
        """Wait for the next call, for some seconds at most, while the head may learn.

        Raises:
            queue.Empty: where none comes.
        """
        if self._learning is None:
            return self._inbox.get(timeout=seconds)
        self._learning.gate.leave()
        try:
            return self._inbox.get(timeout=seconds)
        finally:
            self._learning.gate.enter()

    def _add(self, job: TextJob) -> None:
        turn = self._newest_turn + 1
        for task in job.tasks:
            insort(self._waiting, WaitingTask(turn, job, task), key=lambda each: each.turn)
            turn += len(task.choices)

    def _stop(self) -> None:
        self._ending = True

    def _admit(self) -> None:
        """Start queued requests as far as the batch has room."""
        rows = self.running_texts
        while self._waiting:
            turn, job, task = self._waiting[0]
            if rows and rows + len(task.choices) > self.settings.max_batch:
                return
            del self._waiting[0]
            self._newest_turn = turn
            rows += len(task.choices)
            job.started = job.started or perf_counter()
            self._running[self._batch.add(task.task)] = (job, task)

    @property
    def running_texts(self) -> int:
        """Rows of the batch: texts that hold a cache."""
        return sum(len(task.choices) for _, task in self._running.values())

    def _step(self) -> None:
        others_run = not self._turns.acquire(blocking=False)
        if others_run:
            self._turns.acquire()
        if others_run or self.running_texts > 1:
            for job, _ in self._running.values():
                job.alone = False
        since = perf_counter()
        try:
            events = self._batch.step()
        except Exception as error:  # all tasks are closed
            for job, _ in list(self._running.values()):
                self._end(job, broken(error))
            return
        finally:
            self._turns.release()
        updates: dict[int, tuple[TextJob, list[TextUpdate]]] = {}
        for event in events:
            if event.number not in self._running:  # its request ended with another of its tasks
                continue
            job, task = self._running[event.number]
            try:
                if event.error is not None:
                    raise event.error
                told = self._took(event, job, task)
                if event.finish_reason is not None:
                    del self._running[event.number]
            except Exception as error:
                self._end(job, broken(error))
                continue
            updates.setdefault(id(job), (job, []))[1].extend(told)
        for job, told in updates.values():
            if told and not job.over:
                self._told.append((job, told))
                self._finish_if_done(job)
        self.metrics.step(perf_counter() - since, steps_in_a_row(events))

    def _took(self, event: Any, job: TextJob, task: TaskOfJob) -> list[TextUpdate]:
        """Updates for a request from what an event of the batch reports.

        Of steps in a row the text knows all when the first one is told; the last one ends it.
        """
        is_text, told = isinstance(event.progress, Step), steps_of(event)
        newest = {place: number for number, (place, _) in enumerate(told)}
        updates = []
        for number, (place, step) in enumerate(told):
            is_last = newest[place] == number
            is_last = is_last and (event.finish_reason is not None or not is_text)
            updates.append(task.choices[place].take(step, is_last))
            self.metrics.count(step)
        if told and not job.first_token:
            job.first_token = perf_counter()
        return updates

    def _finish_if_done(self, job: TextJob) -> None:
        if all(each.finished for each in job.choices):
            self._over(job, "finished")

    def _end(self, job: TextJob, why: ApiError | None) -> None:
        """End a request: its tasks release their cache at once."""
        for number, (other, _) in list(self._running.items()):
            if other is job:
                del self._running[number]
                self._batch.cancel(number)
        self._waiting = [each for each in self._waiting if each.job is not job]
        if not job.over:
            self._told.append((job, why))
            self._over(job, "cancelled" if why is None else "failed")

    def _over(self, job: TextJob, how: str) -> None:
        job.ended, job.over, job.end = perf_counter(), True, how
        self.metrics.ended(job, how)

    def _post(self) -> None:
        """Send pending updates to the event loops."""
        told, self._told = self._told, []
        for loop in {id(job.loop): job.loop for job, _ in told}.values():
            own = [(job, each) for job, each in told if job.loop is loop]
            try:
                loop.call_soon_threadsafe(_deliver, own)
            except RuntimeError:  # the loop is closed
                for job in {id(job): job for job, _ in own if not job.over}.values():
                    self._end(job, None)
                self._told = []


def steps_of(event: Any) -> list[tuple[int, Step]]:
    """Steps that an event of the batch reports, each with the place of its text in the task."""
    progress = event.progress
    return [(0, progress)] if isinstance(progress, Step) else list(progress or ())


def steps_in_a_row(events: Iterable[Any]) -> int:
    """Count the steps of the text with most of them; one where none is told, as of prompts."""
    counts = Counter((event.number, place) for event in events for place, _ in steps_of(event))
    return max(counts.values(), default=1)


def _deliver(told: list[tuple[TextJob, Told]]) -> None:
    for job, each in told:
        job.mailbox.put(each)
