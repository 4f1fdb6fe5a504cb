"""Training loop of a conversion: batches, steps, held-out losses and checkpoints."""

import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood_diffusion.training.certainty import Certainty
from draftwood_diffusion.training.decoder import StreamDecoder
from draftwood_diffusion.training.lexical_units import LexicalUnits, probabilities
from draftwood_diffusion.training.losses import Objective, denoising, stream_losses
from draftwood_diffusion.training.noise import Grid, Masked, masked
from draftwood_diffusion.training.rows import TextRows
from draftwood_diffusion.training.teacher import Teacher
from draftwood_train.averaging import HORIZON, average, averaged_weights
from draftwood_train.checkpoints import Checkpoint, copied, random_states
from draftwood_train.interrupts import uninterrupted
from draftwood_train.loop import BrokenLossError, require_finite
from draftwood_train.optimisers import Optimisers, Rates
from draftwood_train.precision import fast_products

Say = Callable[[str], None]
BLOCKS = (4, 8, 16)
"""Lengths of blocks, in turn."""
JUDGED_SEED = 7
UNCLIPPED = math.inf
NONE, REVERSE = "none", "reverse-kl"
TAUGHT = ("kl", REVERSE, NONE)
"""Divergences; none learns tokens alone."""
HALF = 0.5
"""Places of a block that dParallel masks; the others are masked in the second copy."""


@dataclass(frozen=True)
class ConversionSettings:
    """Length, batches, losses and rates of a stage.

    Attributes:
        minutes: of the stage, unless ``steps`` says its length.
        steps: in the place of minutes.
        rows: of a batch.
        blocks: lengths of blocks, in turn.
        shifted: whether the row before a place predicts it.
        next_token, masked: weights of both losses.
        largest_weight: of a masked place, in the place of 1 / t.
        certainty: weight of the entropy of right predictions (dParallel); 0 for denoising.
        units: probability of tokens that placeholders stand for (LUD); 0 masks at random.
        in_order: share of blocks that are masked from a place on, not here and there.
        taught: divergence from a teacher's distributions that is learnt where it knows them, one
            of ``TAUGHT``.
        seed: of the order of texts and of masks.
    """

    mask_token: int
    minutes: float = 60.0
    steps: int | None = None
    rows: int = 8
    blocks: tuple[int, ...] = BLOCKS
    shifted: bool = True
    next_token: float = 1.0
    masked: float = 0.3
    largest_weight: float = 4.0
    certainty: float = 0.0
    units: float = 0.0
    in_order: float = 0.0
    taught: str = NONE
    rates: Rates = field(default_factory=lambda: Rates(5e-4, 1e-4, 10, 0.5))
    clip: float = 1.0
    checkpoint_minutes: float = 5.0
    judge_minutes: float = 10.0
    judged_rows: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.units <= 1:
            raise ValueError(f"units are as likely as a number from 0 to 1 says, not {self.units}")
        if not 0 <= self.in_order <= 1:
            raise ValueError(f"the share in order is a number from 0 to 1, not {self.in_order}")
        if self.taught not in TAUGHT:
            raise ValueError(f"{self.taught!r} is no divergence; take one of {', '.join(TAUGHT)}")
        if self.units and (self.certainty or self.in_order):
            raise ValueError(
                "units are masked from a place on, and for tokens alone: leave --certainty and"
                " --in-order out"
            )
        if self.certainty and self.in_order:
            raise ValueError(
                "certainty masks halves of blocks here and there: leave --in-order out"
            )
        for name in ("minutes", "rows", "largest_weight", "clip", "checkpoint_minutes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, got {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"a stage has at least one step, not {self.steps}")
        if not self.blocks or min(self.blocks) < 1 + self.shifted:
            least = "two tokens where outputs are shifted" if self.shifted else "one token"
            raise ValueError(f"blocks have at least {least}, got lengths {list(self.blocks)}")

    def require_rows(self, places: int) -> None:
        """Refuse rows of so many tokens where a block does not fit."""
        longest = max(self.blocks)
        if 2 * longest > places:
            raise ValueError(
                f"a block of {longest} needs rows of {2 * longest} tokens, the rows have {places};"
                " name shorter --blocks"
            )

    def told(self) -> dict[str, Any]:
        """Settings that a resumed stage must share with its beginning."""
        free = ("rates", "checkpoint_minutes", "judge_minutes", "judged_rows")
        return {name: each for name, each in asdict(self).items() if name not in free}


class Conversion:
    """One stage of a conversion.

    Args:
        decoder: with the weights to begin with.
        folder: of checkpoints.
        resume: whether to go on after the checkpoint in the folder.
        say: is told the progress, a line each.
        teacher: whose distributions are learnt, in the place of tokens where it knows them.

    Raises:
        ValueError: for a block that is longer than a row, and a checkpoint of other settings.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        rows: TextRows,
        settings: ConversionSettings,
        folder: Path,
        resume: bool = False,
        say: Say = lambda line: None,
        teacher: Teacher | None = None,
    ) -> None:
        settings.require_rows(rows.train.shape[1])
        self.decoder, self.rows, self.settings = decoder, rows, settings
        self.folder, self.say, self.teacher = folder, say, teacher
        self.before = deepcopy(decoder) if settings.units else decoder
        self.optimisers = Optimisers(decoder, settings.rates)
        self.objective: Objective = denoising
        if settings.certainty:
            self.objective = Certainty(settings.certainty)
        self.state = Checkpoint(settings.told(), {}, [], {})
        if resume:
            self._restore(Checkpoint.read(folder))

    def run(self) -> None:
        """Train to the end of the stage, or until Ctrl-C, which writes a checkpoint first.

        Raises:
            BrokenLossError: where the loss or the norm of its gradient is no number; a checkpoint
                that there is is good.
        """
        state, before = self.state, self.state.seconds
        began = saved = shown = time.monotonic()
        self.decoder.train()
        try:
            while (progress := self.progress) < 1:
                with uninterrupted():
                    figures = self._step(progress)
                now = time.monotonic()
                state.seconds = before + now - began
                if now - shown > 20:
                    self._show(figures)
                    shown = now
                if state.seconds - state.judged_at >= 60 * self.settings.judge_minutes:
                    with uninterrupted():
                        self.judge()
                if now - saved > 60 * self.settings.checkpoint_minutes:
                    self.save()
                    saved = now
        except BrokenLossError as error:
            raise BrokenLossError(
                f"{error}; give the command again with a lower --learning-rate: with --resume it"
                f" goes on from the last checkpoint in {self.folder}"
            ) from None
        except KeyboardInterrupt:
            self.save()
            self.say("stopped; the same command with --resume goes on here")
            raise
        with uninterrupted():
            self.judge()
            self.save()

    @property
    def progress(self) -> float:
        """Share of the stage that is done."""
        if self.settings.steps is not None:
            return min(1.0, self.state.step / self.settings.steps)
        return min(1.0, self.state.seconds / (60 * self.settings.minutes))

    def save(self) -> None:
        """Write a checkpoint."""
        self.state.head, self.state.random = copied(self.decoder), random_states()
        self.state.optimisers = self.optimisers.state_dict()
        self.state.write(self.folder)

    def judge(self) -> Mapping[str, float]:
        """Held-out losses of the averaged weights, which are kept."""
        with averaged_weights(self.state, self.decoder):
            figures = self.tell("held-out")
        self.state.judged_at = self.state.seconds
        return figures

    def tell(self, what: str) -> Mapping[str, float]:
        """Held-out losses of the decoder's weights, as the newest of the history."""
        state, settings = self.state, self.settings
        texts = self.rows.held_out[: settings.judged_rows]
        figures = held_out_losses(self.decoder, texts, settings)
        state.history.append({**figures, "step": state.step, "tokens": state.tokens})
        told = ", ".join(f"{name} {each:.3f}" for name, each in figures.items())
        self.say(f"{what} after step {state.step}, {state.tokens:,} tokens: {told}")
        return figures

    def _restore(self, state: Checkpoint) -> None:
        own = {name: each for name, each in state.settings.items() if name != "rates"}
        replace(state, settings=own).require(self.settings.told(), ConversionSettings(0).told())
        self.decoder.load_state_dict(state.head)
        if state.optimisers:
            self.optimisers.load_state_dict(state.optimisers)
        self.state = state

    def _step(self, progress: float) -> dict[str, float]:
        state, settings = self.state, self.settings
        texts = self.rows.batch(state.step, settings.rows)
        grid, is_causal, chance = layout(settings, texts.shape[1], state.step)
        with fast_products():
            batch = self._masked(texts, grid, chance)
            losses = stream_losses(
                *(self.decoder, batch, grid, is_causal, settings.shifted),
                *(self.objective, self.teacher),
            )
        loss = settings.next_token * losses["next"] + settings.masked * losses["masked"]
        require_finite("the loss", float(loss.detach()), state.step)
        loss.backward()
        norm = self.optimisers.clip(settings.clip)
        require_finite("the norm of the gradient", norm, state.step)
        self.optimisers.step(state.step, progress)
        state.step += 1
        state.tokens += texts.numel()
        average(state, self.decoder, HORIZON)
        return {name: float(each.detach()) for name, each in losses.items()}

    def _masked(self, texts: Tensor, grid: Grid, chance: torch.Generator) -> Masked:
        """Noisy copies of a step."""
        settings = self.settings
        if settings.units:
            likely = probabilities(self.before, texts)
            units = LexicalUnits(settings.units)
            return units.masked(texts, likely, grid, settings.mask_token, chance)
        share = HALF if settings.certainty else None
        weight = settings.largest_weight
        return masked(
            texts, grid, settings.mask_token, weight, chance, share, in_order=settings.in_order
        )

    def _show(self, figures: Mapping[str, float]) -> None:
        state = self.state
        left = state.seconds / 60 * (1 - self.progress) / max(self.progress, 1e-9)
        told = ", ".join(f"{name} {each:.3f}" for name, each in figures.items())
        rate = state.tokens / max(state.seconds, 1e-9)
        self.say(f"step {state.step}, {told}, {rate:,.0f} tokens/s, {left:.0f} min left")


def layout(
    settings: ConversionSettings, places: int, step: int
) -> tuple[Grid, bool, torch.Generator]:
    """Blocks of a step, whether its clean text is read causally, and its chance.

    Blocks come in turn, each length once with a causal clean text and twice with whole blocks, so
    that finished blocks may be kept either way. Half of the time they are counted from the text's
    first place, else from one that is drawn.
    """
    chance = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    length = settings.blocks[step % len(settings.blocks)]
    start = max(0, int(torch.randint(-length, length, (), generator=chance)))
    is_causal = step // len(settings.blocks) % 3 == 0
    return Grid(places, start, length), is_causal, chance


@torch.no_grad()
def held_out_losses(
    decoder: StreamDecoder, texts: Tensor, settings: ConversionSettings
) -> dict[str, float]:
    """Nats a token: of the next one; of masked ones by block length, over all mask counts; and of
    the first masked one of each of the longest blocks, filled from left to right.
    """
    found, longest = dict[str, float](), max(settings.blocks)
    decoder.eval()
    for name in ("next", *settings.blocks, "in order"):
        length = longest if isinstance(name, str) else name
        grid, sums = Grid(texts.shape[1], 0, length), list[float]()
        for number, part in enumerate(texts.split(settings.rows)):
            chance = torch.Generator().manual_seed(JUDGED_SEED + number)
            in_order = float(name == "in order")
            given = (part, grid, settings.mask_token, UNCLIPPED, chance)
            batch = masked(*given, in_order=in_order)
            if in_order:
                weights = (batch.is_led & batch.is_masked[:, 0]).float()
                batch = replace(batch, weights=weights)
            with fast_products():
                losses = stream_losses(decoder, batch, grid, name == "next", settings.shifted)
            sums.append(len(part) * float(losses["next" if name == "next" else "masked"]))
        told = name if isinstance(name, str) else f"block {length}"
        found[told] = sum(sums) / len(texts)
    decoder.train()
    return found
