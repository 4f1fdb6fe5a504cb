"""Requests that share forward passes; they may join, end and be cancelled at any step."""

import time
from collections import abc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import accumulate, count, pairwise
from typing import Generic

from draftwood.drafters.drafter import Drafter
from draftwood.engine.options import Options
from draftwood.engine.sequence import Sequence
from draftwood.engine.task import Event, Limits, Progress, SequenceStatus, StepBudget, Task
from draftwood.models.model import CacheFullError, Model, ModelInput, ModelOutput
from draftwood.models.requirements import BlockCache
from draftwood.native.step import interrupt_rows
from draftwood.sampling import PassTime, SharedPass
from draftwood.stats import Step
from draftwood.together import run_together
from draftwood.verifiers.verifier import Verifier


class Scheduler(Generic[Progress]):
    """Decides which tasks run, and runs them: each model once per step, over all that ask for it.

    Each text is the same as alone, whatever else is in the batch, up to rounding of the model's
    arithmetic; where a cache with a limit has no room for its trees, a drawn text keeps its
    distribution alone. Used by one thread; a server puts a queue before it. A task that fails ends
    alone, so does one with which no forward pass can be made, but one that lacks blocks which
    others hold is computed again later; a pass that fails in its midst ends all of its tasks, and
    an interrupt ends all there are: none of them keeps a slot of any cache.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._numbers = count()
        self._waiting: dict[int, Task[Progress]] = {}
        self._running: dict[int, Task[Progress]] = {}
        self._inputs: dict[int, abc.Sequence[ModelInput]] = {}  # asked for, not run yet
        self._rows: dict[int, int] = {}  # of each task's last inputs
        self._in_prompt = set[int]()  # tasks that ran a part of their prompt
        self._shortest_first = True  # in the last step with prompts
        self._last_passes: dict[int, tuple[PassTime, ...]] = {}  # of each task

    def __len__(self) -> int:
        """Tasks that have not ended."""
        return len(self._waiting) + len(self._running)

    def add(self, task: Task[Progress]) -> int:
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
        self._last_passes.pop(number, None)
        for tasks in (self._waiting, self._running):
            if number in tasks:
                tasks.pop(number).close()

    @staticmethod
    def interrupt() -> None:
        """Let a step that makes several in a row end with the one under way, from any thread."""
        interrupt_rows()

    def close(self) -> None:
        """End all tasks, also where ending one of them fails."""
        with ExitStack() as stack:
            for number in [*self._waiting, *self._running]:
                stack.callback(self.cancel, number)

    def step(self) -> list[Event[Progress]]:
        """Start what there is room for, run each model once, and report what came of it.

        The events are in the order of the tasks' numbers.
        """
        try:
            while self._waiting and len(self._running) < self.limits.requests:
                number = next(iter(self._waiting))
                self._running[number] = self._waiting.pop(number)
            self._rows = {number: self._rows.get(number, 1) for number in self._running}
            known = preempt_youngest(self._running)
            trees = [number for number, each in known.items() if not each.prompt_left]
            prompts = [number for number, each in known.items() if each.prompt_left]
            self._rows.update(dict.fromkeys(set(trees) & self._in_prompt, 1))
            self._in_prompt = set(prompts)
            events = self._plan_texts(trees, known)
            if events:  # blocks that prompts would have shared may be nobody's
                known.update({number: self._running[number].status for number in prompts})
            events += self._plan_prompts(prompts, known)
            for numbers in self._by_runner():
                events += self._run(numbers)
            return sorted(events, key=lambda event: event.number)
        except BaseException:
            self.close()
            raise

    def _plan_texts(
        self, numbers: abc.Sequence[int], known: Mapping[int, SequenceStatus]
    ) -> list[Event[Progress]]:
        """Let each text say what to run next, knowing what the others do."""
        rows, tokens = (
            sum(self._rows.values()),
            sum(each.expected_tokens for each in known.values()),
        )
        failed = []
        drafting = [number for number in numbers if known[number].has_draft_model]
        others = [[number] for number in numbers if not known[number].has_draft_model]
        for group in [drafting, *others]:  # those with a draft model share its passes
            before = {number: self._rows[number] for number in group}
            budgets = {}
            for number in group:
                shared = tokens - known[number].expected_tokens
                beside = SharedPass(rows - before[number], shared)
                last = self._last_passes.get(number, ())
                budgets[number] = StepBudget(shared=beside, last_passes=last)
            failed += self._plan(budgets)
            rows += sum(self._rows.get(number, 0) - before[number] for number in group)
        return failed

    def _plan_prompts(
        self, numbers: abc.Sequence[int], known: Mapping[int, SequenceStatus]
    ) -> list[Event[Progress]]:
        """Give prompts the rows for which the step has time.

        They come in the order in which they came, and in every other step the shortest first: none
        waits for all of a long one, nor that for ever.
        """
        if not numbers:
            return []
        self._shortest_first = not self._shortest_first
        if self._shortest_first:
            numbers = sorted(numbers, key=lambda number: known[number].prompt_left)
        inputs = [each for own in self._inputs.values() for each in own]
        rows = sum(each.rows for each in inputs)
        context = sum(each.rows * each.past for each in inputs)
        limits, failed, left = self.limits, [], self.limits.prompt_rows
        free = FreeBlocks(known.values())
        oldest = next(iter(known), None)
        for number in numbers:
            if left <= 0:  # what runs whole blocks may take more than there was
                break
            if number != oldest:
                if not free.has(known[number]):
                    continue
                free.take(known[number])
            given, length = min(left, known[number].prompt_left), known[number].length
            if limits.pace is not None:
                given = limits.pace.prompt_rows(rows, context, length, given)
            failed += self._plan({number: StepBudget(prompt_rows=given)})
            if number not in self._running or number not in self._inputs:
                continue  # it failed, or waits
            now = self._running[number].status  # it may have found its beginning in the cache
            more = sum(each.rows for each in self._inputs[number])
            left, rows = left - more, rows + more
            context += more * (now.length + more // 2)
            if limits.pace is not None and more < now.prompt_left:
                break  # the step is full
        return failed

    def _plan(self, budgets: Mapping[int, StepBudget]) -> list[Event[Progress]]:
        """Keep what tasks want to run; gives the events of those that failed."""
        ends: dict[int, Callable[[], Event[Progress]]] = {}
        planned: dict[int, abc.Sequence[ModelInput]] = {}

        def plan(number: int, budget: StepBudget) -> None:
            try:
                planned[number] = self._running[number].plan(budget)
            except CacheFullError as error:
                ends[number] = partial(self._lacked, number, error)
            except Exception as error:
                ends[number] = partial(self._failed, number, error)

        run_together([partial(plan, number, budget) for number, budget in budgets.items()])
        for number in budgets:  # in the tasks' order, whichever was planned first
            if inputs := planned.get(number):  # otherwise it waits, and is asked again
                self._inputs[number] = inputs
                self._rows[number] = sum([each.rows for each in inputs])
        return [end() for end in ends.values()]

    def _by_runner(self) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for number, (first, *_) in self._inputs.items():
            groups.setdefault(id(first.runner), []).append(number)
        return list(groups.values())

    def _run(self, numbers: abc.Sequence[int]) -> list[Event[Progress]]:
        """Make one pass for these tasks, whose time is shared by rows."""
        wanted = [self._inputs.pop(number) for number in numbers]
        inputs = [each for own in wanted for each in own]
        lengths = [each.past for each in inputs]
        since = time.perf_counter()
        try:
            outputs = inputs[0].runner.forward(inputs)
        except CacheFullError as error:
            return self._run_apart(numbers, wanted) or [self._lacked(numbers[0], error)]
        except (ValueError, MemoryError) as error:
            return self._run_apart(numbers, wanted) or [self._failed(numbers[0], error)]
        except Exception as error:
            return [self._failed(number, error) for number in numbers]
        seconds = time.perf_counter() - since
        took = _pass_times(inputs, outputs, lengths, seconds)
        self._last_passes.update(dict.fromkeys(numbers, took))
        if self.limits.pace is not None:
            self.limits.pace.saw(took)
        if len(numbers) == 1:
            return self._commit(numbers[0], outputs, seconds)
        share = seconds / sum(each.rows for each in inputs)
        ends = accumulate(map(len, wanted), initial=0)
        return [
            event
            for number, (first, last) in zip(numbers, pairwise(ends), strict=True)
            for event in self._commit(
                number, outputs[first:last], share * sum(each.rows for each in inputs[first:last])
            )
        ]

    def _run_apart(
        self, numbers: abc.Sequence[int], wanted: abc.Sequence[abc.Sequence[ModelInput]]
    ) -> list[Event[Progress]]:
        """Run each of several tasks alone after a pass that ran nothing: whose fault it was shows
        there.
        """
        if len(numbers) == 1:
            return []
        self._inputs.update(zip(numbers, wanted, strict=True))
        return [event for number in numbers for event in self._run([number])]

    def _commit(
        self, number: int, outputs: abc.Sequence[ModelOutput], seconds: float
    ) -> list[Event[Progress]]:
        task = self._running[number]
        try:
            made = task.commit(outputs, seconds)
        except CacheFullError as error:
            return [self._lacked(number, error)]
        except Exception as error:
            return [self._failed(number, error)]
        if task.finish_reason is not None:
            try:
                self.cancel(number)
            except Exception as error:  # of what it held, which is no affair of the others
                return [*(Event(number, progress) for progress in made), Event(number, error=error)]
        *before, last = made or [None]
        events = [Event(number, progress) for progress in before]
        return [*events, Event(number, last, task.finish_reason)]

    def _failed(self, number: int, error: Exception) -> Event[Progress]:
        with suppress(Exception):  # what went wrong first is told
            self.cancel(number)
        return Event(number, error=error)

    def _lacked(self, number: int, error: CacheFullError) -> Event[Progress]:
        """Let a task wait for blocks of its cache that others hold; end it if nobody does."""
        known = {other: each.status for other, each in self._running.items()}
        cache = known.pop(number).cache
        if not any(each.cache is cache and each.length for each in known.values()):
            return self._failed(number, error)
        self._running[number].preempt()
        return Event(number)


def _pass_times(
    inputs: abc.Sequence[ModelInput],
    outputs: abc.Sequence[ModelOutput],
    lengths: abc.Sequence[int],
    seconds: float,
) -> tuple[PassTime, ...]:
    """Time a pass over trees, or each pass of steps in a row; nothing where more was run, a device
    is not waited for, or texts made other numbers of steps, as those that run other layers do.

    Args:
        lengths: tokens before each input.
        seconds: of the pass, and of what whole steps did beside it.
    """
    if not all(each.is_tree and each.session.model.device.type == "cpu" for each in inputs):
        return ()
    made = [step for output in outputs for step in output.steps]
    if any(step.undrawable is not None for step in made):
        return ()
    counts = {len(output.steps) for output in outputs}
    if max(counts, default=0) > 1:
        return tuple(_times_in_a_row(outputs, lengths)) if len(counts) == 1 else ()
    rows = [
        len(output.steps[0].tokens) if output.steps else given.rows
        for given, output in zip(inputs, outputs, strict=True)
    ]
    nodes, in_steps = sum(rows), sum(len(step.tokens) for step in made)
    attended = sum(own * length for own, length in zip(rows, lengths, strict=True))
    of_steps = sum(step.seconds["target"] for step in made)
    spent = of_steps * nodes / in_steps if in_steps else seconds
    return (PassTime(nodes, attended / nodes, spent),) if nodes else ()


def _times_in_a_row(
    outputs: abc.Sequence[ModelOutput], lengths: abc.Sequence[int]
) -> Iterator[PassTime]:
    """Times of the passes of steps that texts made in a row.

    Args:
        lengths: tokens of each text before the first.
    """
    for steps in zip(*(output.steps for output in outputs), strict=True):
        nodes = [len(step.tokens) for step in steps]
        attended = sum(own * length for own, length in zip(nodes, lengths, strict=True))
        seconds = sum(step.seconds["target"] for step in steps)
        yield PassTime(sum(nodes), attended / sum(nodes), seconds)
        lengths = [now + len(step.path) for now, step in zip(lengths, steps, strict=True)]


def run_all(
    tasks: abc.Sequence[Task[Progress]], limits: Limits | None = None
) -> Generator[tuple[int, Progress], None, None]:
    """Run tasks to their ends; yields (place of the task, what it reports).

    Raises:
        Exception: what a task or a pass raised first; all tasks are closed then.
    """
    scheduler = Scheduler[Progress](limits or Limits(requests=max(1, len(tasks))))
    with closing(scheduler):
        for task in tasks:
            scheduler.add(task)
        while scheduler:
            for event in scheduler.step():
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


def preempt_youngest(tasks: Mapping[int, Task[object]]) -> dict[int, SequenceStatus]:
    """Preempt the youngest tasks until the next trees of the others fit, and the oldest task.

    Nothing was drafted for the next pass yet, so that no text depends on who is preempted.

    Returns:
        The status of each task.
    """
    while True:
        known = {number: task.status for number, task in tasks.items()}
        short = FreeBlocks(known.values()).short
        if not short:
            return known
        holders = [n for n in known if known[n].cache in short and known[n].length]
        if len(holders) < 2 or not tasks[max(holders)].preempt():
            return known  # a pass will report what is lacking


class FreeBlocks:
    """Blocks that are left for prompts once each text has what its next tree may take.

    The oldest task, which comes first, counts as one.
    """

    def __init__(self, known: Iterable[SequenceStatus]) -> None:
        self._left: dict[int, int] = {}
        self._caches: dict[int, BlockCache] = {}
        for number, each in enumerate(known):
            if each.cache is not None and each.cache.free_blocks is not None:
                self._caches[id(each.cache)] = each.cache
                left = self._left.setdefault(id(each.cache), each.cache.free_blocks)
                if not each.prompt_left or not number:
                    self._left[id(each.cache)] = left - each.wants

    @property
    def short(self) -> list[BlockCache]:
        """Caches in which the texts have too few."""
        return [self._caches[number] for number, left in self._left.items() if left < 0]

    def has(self, status: SequenceStatus) -> bool:
        """True if all of a prompt fits, as it does where it holds its blocks already."""
        left = self._left.get(id(status.cache))
        return left is None or status.wants <= max(left, 0)

    def take(self, status: SequenceStatus) -> None:
        """Keep them for this prompt."""
        if id(status.cache) in self._left:
            self._left[id(status.cache)] -= status.wants
