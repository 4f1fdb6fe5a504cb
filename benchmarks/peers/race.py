"""The measurement: every system answers a prompt before any of them sees the next one."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from data import Question, append_record, read_records
from peers.process import Adapter, AdapterError
from peers.protocol import Request
from peers.systems import System

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Setting:
    """What all records of a run have in common."""

    model: str
    max_new_tokens: int
    threads: int
    ignore_eos: bool = False


@dataclass(frozen=True)
class Prompt:
    """A question and its tokens."""

    question: Question
    token_ids: list[int]


@dataclass(frozen=True, eq=False)
class Runner:
    """A system under way."""

    system: System
    adapter: Adapter


class Race:
    """One run over a file of records; what the file has already is left out.

    Args:
        path: where records are appended, one by one.
        setting: written into every record and sent with every request.
        logs: folder for what the adapters print.
    """

    def __init__(self, path: Path, setting: Setting, logs: Path) -> None:
        self.path, self.setting, self.logs = path, setting, logs
        self.console = Console(stderr=True)
        self.done = {
            (r["system"], r["mode"], r["question"])
            for r in read_records(path)
            if "absent" not in r and {key: r[key] for key in asdict(setting)} == asdict(setting)
        }

    def run(
        self,
        systems: Sequence[System],
        prompts: Sequence[Prompt],
        warm_up: Sequence[int],
        machine: Callable[[], dict],
    ) -> None:
        """Measure what is missing; ``machine`` describes this machine before every prompt, while all stand still."""
        work = [system for system in systems if any(list(self._missing(system, prompt)) for prompt in prompts)]
        with ExitStack() as stack, Progress(console=self.console) as bar:
            starting = bar.add_task("starting", total=len(work))
            runners = []
            for system in work:
                bar.update(starting, description=f"starting {system.name}")
                runners += [runner] if (runner := self._start(system, warm_up, stack)) else []
                bar.advance(starting)
            bar.update(starting, description="started")
            if runners:
                task = bar.add_task("answers", total=len(prompts) * len(runners))
                for prompt in prompts:
                    described = machine() if any(list(self._missing(r.system, prompt)) for r in runners) else {}
                    for runner in list(runners):
                        bar.update(task, description=f"question {prompt.question.number}, {runner.system.name}")
                        if not self._answer(runner, prompt, described):
                            runners.remove(runner)
                        bar.advance(task)

    def _missing(self, system: System, prompt: Prompt) -> Iterator[tuple[str, str]]:
        for mode, label in system.modes.items():
            if (system.name, label, prompt.question.number) not in self.done:
                yield mode, label

    def _start(self, system: System, warm_up: Sequence[int], stack: ExitStack) -> Runner | None:
        """Start and warm up; None, with a record of the reason, where that fails."""
        try:
            log = self.logs / (re.sub(r"[^\w.]+", "-", "-".join([system.name, *system.modes.values()])) + ".log")
            adapter = stack.enter_context(Adapter(system.command(), log, environment(self.setting.threads)))
            for mode in system.modes:
                adapter.ask(Request(list(warm_up), WARM_UP_TOKENS, mode))
        except (AdapterError, OSError, ValueError) as error:
            self._absent(system, str(error))
            return None
        return Runner(system, adapter)

    def _answer(self, runner: Runner, prompt: Prompt, machine: dict) -> bool:
        """Let one system answer one prompt in all its modes; False where it failed."""
        system, adapter, question = runner.system, runner.adapter, prompt.question
        for mode, label in self._missing(system, prompt):
            request = Request(prompt.token_ids, self.setting.max_new_tokens, mode, self.setting.ignore_eos)
            try:
                answer = adapter.ask(request)
            except AdapterError as error:
                self._absent(system, f"{label}, question {question.number}: {error}")
                return False
            record = {"system": system.name, "mode": label, "question": question.number, "category": question.category}
            record |= asdict(self.setting) | {"prompt_tokens": len(prompt.token_ids)} | asdict(answer)
            append_record(self.path, record | adapter.description | {"machine": machine})
        return True

    def _absent(self, system: System, reason: str) -> None:
        self.console.print(f"{system.name} is left out: {reason}", markup=False, highlight=False)
        for label in system.modes.values():
            append_record(self.path, {"system": system.name, "mode": label, **asdict(self.setting), "absent": reason})


def environment(threads: int) -> dict[str, str]:
    """Variables for adapters.

    Threads may wait actively while they work: to wait passively (OMP_WAIT_POLICY=PASSIVE) costs llama.cpp two thirds of
    its speed, and it is not needed, for between requests the whole adapter is stopped.
    """
    return {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
