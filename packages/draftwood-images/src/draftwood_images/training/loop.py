"""Loop that trains one part of a model of pictures, with checkpoints and held-out figures."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftwood_train.averaging import average, averaged_weights
from draftwood_train.checkpoints import Checkpoint, copied, random_states, restore_random
from draftwood_train.interrupts import uninterrupted
from draftwood_train.loop import BrokenLossError, require_finite
from draftwood_train.optimisers import Optimisers, Rates
from draftwood_train.places import require_resumed

Say = Callable[[str], None]
SHOWN = 20.0
"""Seconds between two lines about the progress."""


class PictureTask(Protocol):
    """A network with what it learns.

    Attributes:
        name: of its folder of checkpoints.
        module: learns; its buffers are kept with its weights.
        facts: what a resumed training must share with its beginning.
    """

    @property
    def name(self) -> str: ...

    @property
    def module(self) -> nn.Module: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...

    def loss(self, progress: float) -> Tensor:
        """Loss on the next batch, which PyTorch's random numbers choose."""
        ...

    def judge(self) -> dict[str, float]:
        """Figures on what is held out; the first says which weights are best: the largest."""
        ...


@dataclass(frozen=True)
class LessonSchedule:
    """Length and rates of a lesson.

    Attributes:
        minutes: after which it ends; None goes by steps.
        steps: after which it ends.
        average: share of the lesson, at its end, whose weights are averaged.
        judge_seconds: between two evaluations; 0 judges at the end alone.
        patience: evaluations without a better one after which it ends; None for no end.
    """

    minutes: float | None
    steps: int | None = None
    rates: Rates = field(default_factory=Rates)
    clip: float = 1.0
    average: float = 0.0
    judge_seconds: float = 120.0
    patience: int | None = None
    checkpoint_minutes: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("a lesson ends after minutes or after steps; give one of them")
        if not (self.minutes or self.steps or 0) > 0:
            raise ValueError(
                f"a lesson lasts more than 0, got {self.minutes} minutes and {self.steps} steps"
            )

    def told(self, lesson: PictureTask) -> dict[str, Any]:
        """Settings that a resumed lesson must share with its beginning."""
        own = {"seed": self.seed, "rates": asdict(self.rates), "average": self.average}
        return {**own, **lesson.facts}


class LessonRun:
    """Run of a lesson, from its beginning or from its checkpoint.

    Args:
        folder: holds a folder of checkpoints for each lesson.
        resume: whether to go on after a checkpoint, where there is one.

    Raises:
        ValueError: for a checkpoint of other settings, and for one where none is to be resumed.
    """

    def __init__(
        self, lesson: PictureTask, schedule: LessonSchedule, folder: Path, resume: bool, say: Say
    ) -> None:
        self.lesson, self.schedule, self.say = lesson, schedule, say
        self.folder = folder / lesson.name
        torch.manual_seed(schedule.seed)
        self.optimisers = Optimisers(lesson.module, schedule.rates)
        told = schedule.told(lesson)
        self.state = Checkpoint(told, {}, [], {})
        try:
            found = Checkpoint.read(self.folder)
        except FileNotFoundError:
            return
        require_resumed(self.folder, True, resume)
        found.require(told, told)
        lesson.module.load_state_dict(found.head)
        self.optimisers.load_state_dict(found.optimisers)
        restore_random(found.random)
        self.state = found

    def run(self) -> Checkpoint:
        """Train to the end, or until Ctrl-C, which writes a checkpoint first.

        Raises:
            BrokenLossError: where the loss or the norm of its gradient is NaN or infinite; the last
                checkpoint is good.
        """
        state, schedule = self.state, self.schedule
        began = saved = shown = time.monotonic()
        before = state.seconds
        self.lesson.module.train()
        try:
            while (progress := self._progress()) < 1:
                with uninterrupted():
                    loss = self._step(progress)
                now = time.monotonic()
                state.seconds = before + now - began
                if now - shown > SHOWN:
                    shown = now
                    self._show(loss)
                if 0 < schedule.judge_seconds < state.seconds - state.judged_at:
                    with uninterrupted():
                        self._judge()
                    if schedule.patience and state.since_best >= schedule.patience:
                        break
                if now - saved > 60 * schedule.checkpoint_minutes:
                    self.save()
                    saved = now
        except BrokenLossError as error:
            raise BrokenLossError(
                f"{error}; the last good checkpoint is in {self.folder}"
            ) from None
        except KeyboardInterrupt:
            self.save()
            raise
        with uninterrupted():
            if not state.history or state.history[-1]["step"] != state.step:
                self._judge()
            self.save()
        self.lesson.module.load_state_dict(state.best_head)
        return state

    def save(self) -> None:
        """Write a checkpoint."""
        self.state.head = copied(self.lesson.module)
        self.state.optimisers, self.state.random = self.optimisers.state_dict(), random_states()
        self.state.write(self.folder)

    def _step(self, progress: float) -> float:
        name, steps = self.lesson.name, self.state.step
        loss = self.lesson.loss(progress)
        value = float(loss.detach())
        require_finite(f"the loss of the {name}", value, steps)
        loss.backward()
        norm = self.optimisers.clip(self.schedule.clip)
        require_finite(f"the norm of the gradient of the {name}", norm, steps)
        self.optimisers.step(self.state.step, progress)
        self.state.step += 1
        if progress >= 1 - self.schedule.average:
            average(self.state, self.lesson.module)
        else:  # a lesson that was made longer has left its end
            self.state.averaged, self.state.averaged_steps = {}, 0
        return value

    def _judge(self) -> None:
        state, module = self.state, self.lesson.module
        with averaged_weights(state, module), torch.no_grad():
            module.eval()
            figures = self.lesson.judge()
            state.since_best += 1
            value = next(iter(figures.values()))
            if value > state.best:
                state.best, state.best_step, state.since_best = value, state.step, 0
                state.best_head = copied(module)
        module.train()
        state.judged_at = state.seconds
        state.history.append({**figures, "step": state.step, "seconds": state.seconds})
        told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        self.say(f"{self.lesson.name} after step {state.step}: {told}")

    def _show(self, loss: float) -> None:
        state = self.state
        self.say(
            f"{self.lesson.name} step {state.step}, loss {loss:.4f},"
            f" {state.seconds / 60:.1f} min, {100 * self._progress():.0f} % done"
        )

    def _progress(self) -> float:
        if self.schedule.minutes is None:
            return min(1.0, self.state.step / (self.schedule.steps or 1))
        return min(1.0, self.state.seconds / (60 * self.schedule.minutes))
