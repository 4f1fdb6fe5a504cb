"""Training loop that all recipes share, with checkpoints and evaluation."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from draftwood_train.averaging import average, averaged_weights
from draftwood_train.checkpoints import Checkpoint, copied, random_states, restore_random
from draftwood_train.durations import duration
from draftwood_train.interrupts import uninterrupted
from draftwood_train.judging import all_counted, means, summed
from draftwood_train.optimisers import Optimisers, Rates
from draftwood_train.packing import RowPacking, moved
from draftwood_train.precision import fast_precision
from draftwood_train.recipe import DrafterRecipe, Judged, TargetWeights

Say = Callable[[str], None]
Unit = Literal["steps", "tokens", "minutes", "cpu_minutes"]


@dataclass(frozen=True)
class TrainingSettings:
    """Length, batches and rates of a training.

    Attributes:
        amount, unit: when it ends: after so many steps, tokens or minutes; minutes of the processor
            are those of one thread, and leave out pauses and what runs beside it.
        rows: of a batch, each of ``places`` places.
        accumulate: batches whose gradients make one step.
        clip: largest norm of a gradient.
        judge_every: steps between two evaluations on the held-out texts.
        judge_rows: held-out rows that an evaluation reads, drawn where there are more.
        judge_minutes: minutes between two, of the unit's clock; None goes by steps.
        patience: evaluations without a better result after which it ends; None for no end.
        checkpoint_minutes: between two checkpoints.
        seed: of the order of texts, of new weights and of noise.
        precision: of products; bfloat16 where it is fast.
        average: share of the training, at its end, whose weights are averaged.
        flattest: share of the training texts that is kept: those after whose tokens the target is
            least sure (arXiv:2601.18902).
    """

    amount: float
    unit: Unit = "tokens"
    rows: int = 8
    places: int = 512
    accumulate: int = 1
    rates: Rates = field(default_factory=Rates)
    clip: float = 1.0
    judge_every: int = 100
    judge_rows: int = 24
    patience: int | None = None
    checkpoint_minutes: float = 3.0
    seed: int = 0
    precision: Literal["bfloat16", "float32"] = field(default_factory=fast_precision)
    judge_minutes: float | None = None
    average: float = 0.0
    flattest: float = 1.0

    def __post_init__(self) -> None:
        for name in ("amount", "rows", "places", "accumulate", "judge_every", "judge_rows"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}")
        if not (0 <= self.average <= 1 and 0 < self.flattest <= 1):
            raise ValueError(
                f"average and flattest are shares up to 1, got {self.average} and {self.flattest}"
            )

    def told(self, recipe: DrafterRecipe) -> dict[str, Any]:
        """Settings that a resumed training must share with its beginning."""
        own = asdict(self)
        free = ("patience", "checkpoint_minutes", "judge_every", "judge_minutes", "judge_rows")
        return {**{k: v for k, v in own.items() if k not in free}, **_fields(recipe)}


def _fields(recipe: DrafterRecipe) -> dict[str, Any]:
    return {"recipe": recipe.name, **asdict(recipe)}  # type: ignore[call-overload]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a training.

    Attributes:
        head: the best drafter by held-out block efficiency.
        figures: of the best one, by name.
        reason: reason for the end.
    """

    head: nn.Module
    figures: Mapping[str, float]
    step: int
    tokens: int
    seconds: float
    reason: Literal["done", "no longer better", "stopped"]


class BrokenLossError(ValueError):
    """The loss, or the norm of its gradient, is NaN or infinite."""


def require_finite(what: str, value: float, steps: int) -> None:
    """Raise BrokenLossError for a value that is NaN or infinite, after so many good steps."""
    if not math.isfinite(value):
        raise BrokenLossError(f"{what} is {value} at step {steps + 1}, so training ends")


class Trainer:
    """Trainer of one drafter; several processes, as Accelerate starts them, share the batches.

    Args:
        folder: where checkpoints and logs go.
        start: a drafter to start from, with its weights; None builds a new one.
        resume: whether to go on after the checkpoint in the folder.
        say: called with a line about the progress now and then.
        inputs: digests of what is trained on, by name, which a resumed training must share too.

    Raises:
        ValueError: for a checkpoint of other settings or inputs.
    """

    def __init__(
        self,
        recipe: DrafterRecipe,
        target: TargetWeights,
        train: RowPacking,
        held_out: RowPacking,
        settings: TrainingSettings,
        folder: Path,
        start: nn.Module | None = None,
        resume: bool = False,
        say: Say = lambda line: None,
        inputs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        from accelerate import Accelerator
        from accelerate.utils import set_seed

        self.recipe, self.settings, self.folder, self.say = recipe, settings, folder, say
        halves = settings.precision == "bfloat16"
        self._accelerator = Accelerator(mixed_precision="bf16" if halves else "no")
        self._device = self._accelerator.device
        set_seed(settings.seed)
        self.target = on_device(target, self._device, torch.bfloat16 if halves else torch.float32)
        self.head = (start or recipe.build(target)).to(self._device)
        set_seed(settings.seed + self._accelerator.process_index)
        self.optimisers = Optimisers(self.head, settings.rates)
        self._train, self._held_out, self._all_count = train, held_out, False
        self._beginning = Checkpoint({**settings.told(recipe), **inputs}, {}, [], {})
        self.state = self._beginning
        if resume:
            self._restore(Checkpoint.read(folder))
        self._log = _Log(folder) if self._accelerator.is_main_process else None

    def run(self) -> Outcome:
        """Train to the end, or until Ctrl-C.

        Raises:
            BrokenLossError: if the loss is NaN or infinite; the best drafter until then is known.
        """
        state, settings = self.state, self.settings
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        batches = self._train.batches(state.step * settings.accumulate * world + rank, world)
        began, before = self._clock(), state.seconds
        saved = shown = time.monotonic()
        reason: Literal["done", "no longer better", "stopped"] = "done"
        self.head.train()
        if state.step == 0:
            self._judge()
        try:
            while (progress := self._progress()) < 1:
                with uninterrupted():
                    figures = self._step(batches, progress)
                now = time.monotonic()
                state.seconds = self._agreed(before + self._clock() - began)
                if now - shown > 10:
                    self._show(figures)
                    shown = now
                if self._is_due():
                    self._judge()
                    if settings.judge_minutes is not None:  # without those of the look itself
                        state.judged_at = self._agreed(before + self._clock() - began)
                    if settings.patience and state.since_best >= settings.patience:
                        reason = "no longer better"
                        break
                if self._agreed(float(now - saved > 60 * settings.checkpoint_minutes)):
                    self.save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            reason = "stopped"
            if self._is_due():
                self._judge_once()
            self.save()  # as it would have been without the stop, so without what follows
        self._judge_once()
        if reason != "stopped":
            self.save()
        if self._log is not None:
            self._log.close()
        return self.outcome(reason)

    def outcome(self, reason: Literal["done", "no longer better", "stopped"]) -> Outcome:
        """The best drafter so far."""
        state = self.state
        self.head.load_state_dict(state.best_head)
        best = next(row for row in state.history if row["step"] == state.best_step)
        return Outcome(self.head, best, state.step, state.tokens, state.seconds, reason)

    def save(self) -> None:
        """Write a checkpoint."""
        if not self._accelerator.is_main_process:
            return
        state = self.state
        state.head = copied(self.head)
        state.optimisers, state.random = self.optimisers.state_dict(), random_states()
        state.write(self.folder)

    def _restore(self, state: Checkpoint) -> None:
        own, usual = self._beginning.settings, TrainingSettings(self.settings.amount)
        state.require(own, {**own, **usual.told(type(self.recipe)())})
        self.head.load_state_dict(state.head)
        self.optimisers.load_state_dict(state.optimisers)
        restore_random(state.random)
        self.state = state

    def _step(self, batches: Any, progress: float) -> dict[str, float]:
        state, count = self.state, self.settings.accumulate
        figures: dict[str, float] = {}
        tokens = 0
        for _ in range(count):
            rows = moved(next(batches), self._device)
            tokens += int((rows.segments >= 0).sum())
            with self._accelerator.autocast():
                loss, told = self.recipe.loss(self.head, rows, self.target, progress)
            value = float(loss.detach())
            require_finite("the loss", value, state.step)
            (loss / count).backward()
            for name, figure in {"loss": value, **told}.items():
                figures[name] = figures.get(name, 0.0) + figure / count
        for parameter in self.optimisers.parameters if self._is_shared else ():
            # of all processes or of none, whatever was in this one's rows
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            mean: Any = self._accelerator.reduce(own, "mean")
            parameter.grad = mean
        figures["gradient"] = self.optimisers.clip(self.settings.clip)
        require_finite("the norm of the gradient", figures["gradient"], state.step)
        figures["rate"] = self.optimisers.step(state.step, progress)
        state.step += 1
        state.tokens += int(self._summed(tokens))
        if progress >= 1 - self.settings.average:
            average(state, self.head)
        if self._log is not None:
            self._log.write("train", figures, state)
        return figures

    def _judge_once(self) -> None:
        """Evaluate unless that was done after this step."""
        if not self.state.history or self.state.history[-1]["step"] != self.state.step:
            self._judge()

    def _is_due(self) -> bool:
        """True if the held-out texts are to be judged now."""
        state, settings = self.state, self.settings
        if settings.judge_minutes is None:
            return state.step % settings.judge_every == 0
        return state.seconds - state.judged_at >= 60 * settings.judge_minutes

    def _judge(self) -> None:
        """Evaluate on the held-out texts, and keep the weights if they are the best so far.

        Where weights are averaged it is their average that is judged.
        """
        with averaged_weights(self.state, self.head):
            judged = self._judged()
            figures = means(judged)
            self._remember(figures, judged.places)
        told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
        self.say(f"held-out after step {self.state.step}: {told}")

    def _judged(self) -> Judged:
        """Counts over the held-out places.

        Places are those of greedy answers, or of all where no greedy one is long enough.
        """
        self.head.eval()
        judged = summed(self._parts())
        if not (judged.places or self._all_count):
            self._all_count = True  # the texts stay, so once tells it for all evaluations
            judged = summed(self._parts())
        self.head.train()
        if not judged.places:
            raise ValueError(
                "the held-out texts have no answer long enough to judge by; raise --places, train"
                " fewer heads or frames, or give 'draftwood train data' more --tokens"
            )
        return judged

    def _parts(self) -> Iterator[Judged]:
        """Judge held-out rows, drawn once for all evaluations, a batch at a time."""
        rows = [row for batch in self._held_out.plan(0) for row in batch]
        count = min(len(rows), self.settings.judge_rows)  # the first may be of one kind alone
        rows = [rows[number] for number in sorted(Random(0).sample(range(len(rows)), count))]
        for start in range(0, len(rows), self._held_out.rows):
            batch = self._held_out.packed(rows[start : start + self._held_out.rows])
            batch = moved(all_counted(batch) if self._all_count else batch, self._device)
            with torch.no_grad(), self._accelerator.autocast():
                judged = self.recipe.judge(self.head, batch, self.target)
            yield judged

    def _remember(self, figures: Mapping[str, float], places: int) -> None:
        """Keep figures of so many places, and the weights that had them where they are the best."""
        state = self.state
        value = self._agreed(figures[getattr(self.recipe, "judged_by", "block_efficiency")])
        state.since_best += 1
        if value > state.best:
            state.best, state.best_step, state.since_best = value, state.step, 0
            state.best_head = copied(self.head)
        state.judged_at = state.seconds
        row = {**figures, "places": places, "step": state.step, "tokens": state.tokens}
        state.history.append(row)
        if self._log is not None:
            self._log.write("held-out", figures, state)

    def _show(self, figures: Mapping[str, float]) -> None:
        state, progress = self.state, self._progress()
        rate = state.tokens / max(state.seconds, 1e-9)
        left = state.seconds * (1 - progress) / max(progress, 1e-9)
        self.say(
            f"step {state.step}, {state.tokens:,} tokens, loss {figures['loss']:.3f},"
            f" {rate:,.0f} tokens/s, {duration(max(left, 0.0))} left"
        )

    def _progress(self) -> float:
        done = {
            "steps": self.state.step,
            "tokens": self.state.tokens,
            "minutes": self.state.seconds / 60,
            "cpu_minutes": self.state.seconds / 60,
        }
        return min(1.0, done[self.settings.unit] / self.settings.amount)

    def _clock(self) -> float:
        """Seconds of the clock that the training ends by."""
        if self.settings.unit == "cpu_minutes":
            return time.process_time() / torch.get_num_threads()
        return time.monotonic()

    @property
    def _is_shared(self) -> bool:
        return self._accelerator.num_processes > 1

    def _agreed(self, value: float) -> float:
        """Value of the main process, given to all."""
        if not self._is_shared:
            return value
        from accelerate.utils import broadcast

        told: Any = broadcast(torch.tensor(value, dtype=torch.float64, device=self._device))
        return float(told)

    def _summed(self, value: float) -> float:
        if not self._is_shared:
            return value
        summed: Any = self._accelerator.reduce(
            torch.tensor(value, dtype=torch.float64, device=self._device)
        )
        return float(summed)


class _Log:
    """Figures for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, part: str, figures: Mapping[str, float], state: Checkpoint) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(f"{part}/{name}", value, state.step)
        with suppress(OSError):  # a full disk ends no training here, checkpoints tell
            self._writer.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._writer.close()


def on_device(target: TargetWeights, device: torch.device, dtype: torch.dtype) -> TargetWeights:
    """The target's weights where training needs them, matrices in the type of products."""

    def placed(weight: Tensor) -> Tensor:
        return weight.to(device, dtype) if weight.dim() > 1 else weight.to(device)

    return replace(
        target,
        embedding=placed(target.embedding),
        head=placed(target.head),
        draft_tokens=target.draft_tokens.to(device),
        draft_index=target.draft_index.to(device),
        last_layers=[
            {name: placed(each) for name, each in layer.items()} for layer in target.last_layers
        ],
        final_norm=None if target.final_norm is None else placed(target.final_norm),
    )
