"""Requests that share forward passes; they may join, end and be cancelled at any step."""

import time
from collections import abc
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from itertools import accumulate, count, pairwise
from typing import Any

from draftwood.engine.free_blocks import FreeBlocks, make_room
from draftwood.engine.options import Options
from draftwood.engine.sequence import Sequence
from draftwood.engine.task import (
    Event,
    Input,
    Limits,
    OwnPass,
    SequenceStatus,
    StepBudget,
    Task,
)
from draftwood.interfaces.drafter import Drafter
from draftwood.interfaces.model import Model, PromptInput, StepInput, run_alone
from draftwood.interfaces.verifier import Verifier
from draftwood.native.step import NativeStep
from draftwood.sampling import PassTime, SharedPass
from draftwood.stats import Step
from draftwood.together import run_together


class Scheduler:
    """Tasks under way.

    Each text is the same as alone, whatever else is in the batch, up to rounding of the model's
    arithmetic. Used by one thread; a server puts a queue before it. A task that fails ends alone,
    so does one with which no forward pass can be made; a pass that fails in its midst ends all of
    its tasks, and an interrupt ends all there are: none of them keeps a slot of any cache.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._numbers = count()
        self._waiting: dict[int, Task] = {}
        self._running: dict[int, Task] = {}
        self._inputs: dict[int, abc.Sequence[Input]] = {}  # asked for, not run yet
        self._rows: dict[int, int] = {}  # of each task's last inputs
        self._took: dict[int, PassTime | None] = {}  # each task's last pass

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
        self._rows.pop(number, None)
        self._took.pop(number, None)
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
            while self._waiting and len(self._running) < self.limits.requests:
                number = next(iter(self._waiting))
                self._running[number] = self._waiting.pop(number)
            self._rows = {number: self._rows.get(number, 1) for number in self._running}
            asked = make_room(self._running)
            trees = [number for number, each in asked.items() if not each.prompt_left]
            prompts = [number for number, each in asked.items() if each.prompt_left]
            events = [*self._ask_texts(trees, asked), *self._ask_prompts(prompts, asked)]
            for numbers in self._by_model():
                events += self._run(numbers)
            return sorted(events, key=lambda event: event.number)
        except BaseException:
            self.close()
            raise

    def _ask_texts(
        self, numbers: abc.Sequence[int], known: Mapping[int, SequenceStatus]
    ) -> list[Event]:
        """Each text says what to run next, knowing what the others do."""
        rows, tokens = (
            sum(self._rows.values()),
            sum(each.expected_tokens for each in known.values()),
        )
        failed = []
        drafting = [number for number in numbers if known[number].has_draft_model]
        others = [[number] for number in numbers if not known[number].has_draft_model]
        for group in [drafting, *others]:  # those with a draft model share its passes
            before = {number: self._rows[number] for number in group}
            turns = {}
            for number in group:
                shared = tokens - known[number].expected_tokens
                beside = SharedPass(rows - before[number], shared)
                turns[number] = StepBudget(shared=beside, last_pass=self._took.get(number))
            failed += self._ask(turns)
            rows += sum(self._rows.get(number, 0) - before[number] for number in group)
        return failed

    def _ask_prompts(
        self, numbers: abc.Sequence[int], known: Mapping[int, SequenceStatus]
    ) -> list[Event]:
        """Prompts take the rows for which the step has time, in the order in which they came."""
        if not numbers:
            return []
        inputs = [each for own in self._inputs.values() for each in own]
        rows = sum(map(_rows, inputs))
        context = sum(
            _rows(each) * each.session.length for each in inputs if not isinstance(each, OwnPass)
        )
        limits, failed, left = self.limits, [], self.limits.prompt_rows
        free = FreeBlocks(known.values())
        oldest = next(iter(known), None)
        for number in numbers:
            if not left:
                break
            if number != oldest:
                if not free.has(known[number]):
                    continue
                free.take(known[number])
            given, length = min(left, known[number].prompt_left), known[number].length
            if limits.pace is not None:
                given = limits.pace.prompt_rows(rows, context, length, given)
            failed += self._ask({number: StepBudget(prompt_rows=given)})
            more = sum(map(_rows, self._inputs.get(number, ())))
            left, rows, context = left - more, rows + more, context + more * (length + more // 2)
            if limits.pace is not None and more < known[number].prompt_left:
                break  # the step is full
        return failed

    def _ask(self, turns: Mapping[int, StepBudget]) -> list[Event]:
        """What tasks want to run is kept; the events of those that failed."""
        calls = [partial(self._running[number].plan, turn) for number, turn in turns.items()]
        failed = []
        for number, inputs in zip(turns, run_together(calls), strict=True):
            if isinstance(inputs, Exception):
                failed.append(self._failed(number, inputs))
            elif inputs:  # otherwise it waits, and is asked again at the next step
                self._inputs[number] = inputs
                self._rows[number] = sum(map(_rows, inputs))
        return failed

    def _by_model(self) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for number, (first, *_) in self._inputs.items():
            pass_of = first if isinstance(first, OwnPass) else first.session.model
            groups.setdefault(id(pass_of), []).append(number)
        return list(groups.values())

    def _run(self, numbers: abc.Sequence[int]) -> list[Event]:
        """One pass for these tasks; its time is shared by rows."""
        wanted = [self._inputs.pop(number) for number in numbers]
        inputs = [each for own in wanted for each in own]
        lengths = [0 if isinstance(each, OwnPass) else each.session.length for each in inputs]
        since = time.perf_counter()
        try:
            outputs = _forward(inputs)
        except Exception as error:
            if len(numbers) > 1 and isinstance(error, (ValueError, MemoryError)):
                # nothing was run: whose fault it is shows where each runs alone
                self._inputs.update(zip(numbers, wanted, strict=True))
                return [event for number in numbers for event in self._run([number])]
            return [self._failed(number, error) for number in numbers]
        seconds = time.perf_counter() - since
        self._took.update(dict.fromkeys(numbers, _pass_time(inputs, outputs, lengths, seconds)))
        if len(numbers) == 1:
            return [self._take(numbers[0], outputs, seconds)]
        share = seconds / sum(map(_rows, inputs))
        ends = accumulate(map(len, wanted), initial=0)
        return [
            self._take(number, outputs[first:last], share * sum(map(_rows, inputs[first:last])))
            for number, (first, last) in zip(numbers, pairwise(ends), strict=True)
        ]

    def _take(self, number: int, outputs: abc.Sequence[Any], seconds: float) -> Event:
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


def _forward(inputs: abc.Sequence[Input]) -> abc.Sequence[Any]:
    """A pass of one model over all of them, or one that a task makes itself."""
    shared = [each for each in inputs if not isinstance(each, OwnPass)]
    if len(shared) == len(inputs):
        return shared[0].session.model.forward(shared)
    return [each.run() if isinstance(each, OwnPass) else run_alone(each) for each in inputs]


def _pass_time(
    inputs: abc.Sequence[Input],
    outputs: abc.Sequence[Any],
    lengths: abc.Sequence[int],
    seconds: float,
) -> PassTime | None:
    """How long a pass over trees took; None where more was run, or a device is not waited for.

    Args:
        lengths: tokens before each input.
        seconds: of the pass, and of what whole steps did beside it.
    """
    nodes = attended = in_steps = 0
    of_steps = 0.0
    for given, made, length in zip(inputs, outputs, lengths, strict=True):
        if isinstance(given, (OwnPass, PromptInput)) or given.session.model.device.type != "cpu":
            return None
        rows = len(made.tokens) if isinstance(made, NativeStep) else _rows(given)
        nodes, attended = nodes + rows, attended + rows * length
        if isinstance(made, NativeStep):
            in_steps, of_steps = in_steps + rows, of_steps + made.seconds["target"]
        elif isinstance(given, StepInput):  # it broke
            return None
    if not nodes:
        return None
    spent = of_steps * nodes / in_steps if in_steps else seconds
    return PassTime(nodes, attended / nodes, spent)


def _rows(given: Input) -> int:
    """Tokens that are run."""
    if isinstance(given, (OwnPass, StepInput)):
        return given.rows
    return len(given.tokens) if isinstance(given, PromptInput) else len(given.tree) - given.first


def run_all(
    tasks: abc.Sequence[Task], limits: Limits | None = None
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks to their ends in one batch; yields (place of the task, what it tells).

    Raises:
        Exception: what a task or a pass raised first; all tasks are closed then.
    """
    with closing(Scheduler(limits or Limits(requests=max(1, len(tasks))))) as batch:
        for task in tasks:
            batch.add(task)
        while batch:
            for event in batch.step():
                if event.error is not None:
                    raise event.error
                if event.progress is not None:
                    yield event.number, event.progress


def generate(
    target: Model, drafter: Drafter, verifier: Verifier, prompt: abc.Sequence[int], options: Options
) -> Iterator[Step]:
    """Decode one prompt; yields a step per forward pass of the target, the prompt's first.

    Raises:
        ValueError: for a prompt that is empty or too long, or a verifier that is not exact for the
            drafts.
    """
    sequence = Sequence(target, drafter, verifier, prompt, options)
    return (step for _, step in run_all([sequence]))


def generate_batch(sequences: abc.Sequence[Sequence]) -> Generator[tuple[int, Step], None, None]:
    """Decode several prompts with one padded pass of the target per round.

    Yields (number of the prompt, step).
    """
    return run_all(sequences)
