"""Requests that share forward passes; they may join, end and be cancelled at any step."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate, count, pairwise
from typing import Any

from draftwood.engine.decoding import Decoding
from draftwood.engine.options import Options
from draftwood.engine.task import Event, Input, Limits, OwnPass, PromptChunk, Task
from draftwood.interfaces.drafter import Drafter
from draftwood.interfaces.model import ForwardInput, Model
from draftwood.interfaces.verifier import Verifier
from draftwood.stats import Step


class Batch:
    """Tasks under way.

    Each text is the same as alone, whatever else is in the batch, up to rounding of the model's
    arithmetic. Used by one thread; a server puts a queue before it. A task that fails ends alone,
    one whose forward pass fails ends with all tasks of that pass, and an interrupt ends all: none
    of them keeps a slot of any cache.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._numbers = count()
        self._waiting: dict[int, Task] = {}
        self._running: dict[int, Task] = {}
        self._inputs: dict[int, Sequence[Input]] = {}  # asked for, not run yet

    def __len__(self) -> int:
        """Tasks that have not ended."""
        return len(self._waiting) + len(self._running)

    def add(self, task: Task) -> int:
        """Let a task wait for room; gives its number.

        It starts with the next step that has room, and holds no cache before.
        """
        number = next(self._numbers)
        self._waiting[number] = task
        return number

    def cancel(self, number: int) -> None:
        """End a task; what it held is free at once. Nothing happens where it has ended."""
        self._inputs.pop(number, None)
        for tasks in (self._waiting, self._running):
            if number in tasks:
                tasks.pop(number).close()

    def close(self) -> None:
        """End all tasks, also where ending one of them fails."""
        with ExitStack() as stack:
            for number in [*self._waiting, *self._running]:
                stack.callback(self.cancel, number)

    def step(self) -> list[Event]:
        """Start what there is room for, run each model once, and tell what came of it.

        The events are in the order of the tasks' numbers.
        """
        try:
            events = self._ask()
            prompts, trees = self._chosen()
            for number in prompts:
                events += self._run([number])
            for numbers in self._by_model(trees):
                events += self._run(numbers)
            return sorted(events, key=lambda event: event.number)
        except BaseException:
            self.close()
            raise

    def _ask(self) -> list[Event]:
        """Every running task says what to run next."""
        while self._waiting and len(self._running) < self.limits.requests:
            number = next(iter(self._waiting))
            self._running[number] = self._waiting.pop(number)
        events, alone = [], len(self._running) == 1
        for number, task in list(self._running.items()):
            if number not in self._inputs:
                try:
                    inputs = task.next_inputs(alone)
                except Exception as error:
                    events.append(self._failed(number, error))
                    continue
                if inputs:  # otherwise it waits, and is asked again at the next step
                    self._inputs[number] = inputs
        return events

    def _chosen(self) -> tuple[list[int], list[int]]:
        """Tasks to be run now: those with prompts, as many as the limit lets in, and the others."""
        prompts, trees, rows = [], [], 0
        for number, inputs in self._inputs.items():
            more = sum(len(each.tokens) for each in inputs if isinstance(each, PromptChunk))
            if not more:
                trees.append(number)
            elif not rows or rows + more <= self.limits.prompt_rows:
                prompts.append(number)
                rows += more
        return prompts, trees

    def _by_model(self, numbers: Sequence[int]) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for number in numbers:
            first = self._inputs[number][0]
            pass_of = first if isinstance(first, OwnPass) else first.session.model
            groups.setdefault(id(pass_of), []).append(number)
        return list(groups.values())

    def _run(self, numbers: Sequence[int]) -> list[Event]:
        """One pass for these tasks; its time is shared by rows."""
        wanted = [self._inputs.pop(number) for number in numbers]
        inputs = [each for own in wanted for each in own]
        since = time.perf_counter()
        try:
            outputs = _forward(inputs)
        except Exception as error:
            return [self._failed(number, error) for number in numbers]
        seconds = time.perf_counter() - since
        if len(numbers) == 1:
            return [self._take(numbers[0], outputs, seconds)]
        share = seconds / sum(map(_rows, inputs))
        ends = accumulate(map(len, wanted), initial=0)
        return [
            self._take(number, outputs[first:last], share * sum(map(_rows, inputs[first:last])))
            for number, (first, last) in zip(numbers, pairwise(ends), strict=True)
        ]

    def _take(self, number: int, outputs: Sequence[Any], seconds: float) -> Event:
        task = self._running[number]
        try:
            progress = task.take(outputs, seconds)
        except Exception as error:
            return self._failed(number, error)
        if task.finish_reason is not None:
            self.cancel(number)
        return Event(number, progress, task.finish_reason)

    def _failed(self, number: int, error: Exception) -> Event:
        self.cancel(number)
        return Event(number, error=error)


def _forward(inputs: Sequence[Input]) -> Sequence[Any]:
    """A pass of one model: of prompts one after the other, of trees all together."""
    trees = [each for each in inputs if isinstance(each, ForwardInput)]
    if len(trees) == len(inputs):
        return trees[0].session.model.forward(trees)
    return [_alone(each) for each in inputs]


def _alone(given: Input) -> Any:
    if isinstance(given, OwnPass):
        return given.run()
    if isinstance(given, PromptChunk):
        return given.session.extend(given.tokens, given.keep, given.hidden)
    return given.session.model.forward([given])[0]


def _rows(given: Input) -> int:
    """Tokens that are run."""
    if isinstance(given, OwnPass):
        return given.rows
    return len(given.tokens) if isinstance(given, PromptChunk) else len(given.tree) - given.first


def run_all(
    tasks: Sequence[Task], limits: Limits | None = None
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks to their ends in one batch; yields (place of the task, what it tells).

    Raises:
        Exception: what a task or a pass raised first; all tasks are closed then.
    """
    with closing(Batch(limits or Limits(requests=max(1, len(tasks))))) as batch:
        for task in tasks:
            batch.add(task)
        while batch:
            for event in batch.step():
                if event.error is not None:
                    raise event.error
                if event.progress is not None:
                    yield event.number, event.progress


def generate(
    target: Model, drafter: Drafter, verifier: Verifier, prompt: Sequence[int], options: Options
) -> Iterator[Step]:
    """Decode one prompt; yields a step per forward pass of the target, the prompt's first.

    Raises:
        ValueError: for a prompt that is empty or too long, or a verifier that is not exact for the
            drafts.
    """
    decoding = Decoding(target, drafter, verifier, prompt, options)
    return (step for _, step in run_all([decoding]))


def generate_batch(decodings: Sequence[Decoding]) -> Generator[tuple[int, Step], None, None]:
    """Decode several prompts with one padded pass of the target per round.

    Yields (number of the prompt, step).
    """
    return run_all(decodings)
