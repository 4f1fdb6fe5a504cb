"""The loop: a draft model draws tokens, the target looks at them in one pass, a rule decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int

from draftwood_images.continuous.chance import Chance
from draftwood_images.continuous.model import ContinuousModel, require_alike
from draftwood_images.continuous.rule import ContinuousDrafts, ContinuousRule, DraftVerdict

BLOCK = 4
"""Tokens of a draft, as in the demonstration of CSpD."""


@dataclass(frozen=True, eq=False)
class DrawnPictures:
    """Pictures, and what each took.

    Attributes:
        tokens: of the pictures.
        passes: of the target's transformer.
        head_passes: of its diffusion head, one after the other.
        tested: drafted tokens that the rule decided on.
        kept: of these.
    """

    tokens: Float[np.ndarray, "pictures length size"]
    passes: Int[np.ndarray, " pictures"]
    head_passes: Int[np.ndarray, " pictures"]
    tested: Int[np.ndarray, " pictures"]
    kept: Int[np.ndarray, " pictures"]


@dataclass(frozen=True)
class Undrafted(ContinuousRule):
    """The target alone: all of a picture is its own."""

    name: ClassVar[str] = "plain"
    summary: ClassVar[str] = "the target alone"
    source: ClassVar[str] = ""
    promise: ClassVar[Literal["lossless", "trades quality"]] = "lossless"
    last_noise: bool = True
    prefill: float = 1.0

    def head_passes(self, steps: int) -> int:
        return 0

    def require(self, target: ContinuousModel, draft: ContinuousModel) -> None:
        """There is nothing to require."""

    def judge(
        self, target: ContinuousModel, states: np.ndarray, drafts: ContinuousDrafts, chance: Chance
    ) -> DraftVerdict:
        raise NotImplementedError("nothing is drafted")


def draw(
    target: ContinuousModel,
    draft: ContinuousModel,
    rule: ContinuousRule,
    seeds: Sequence[int],
    block: int = BLOCK,
) -> DrawnPictures:
    """Draw a picture for each seed, side by side.

    Args:
        block: tokens that are drafted for one pass of the target.

    Raises:
        ValueError: for models that do not belong together or that the rule cannot take.
    """
    require_alike(target, draft)
    rule.require(target, draft)
    if block < 1:
        raise ValueError(f"a draft has at least one token, {block} were asked for")
    drawing = ContinuousDrawing(target, draft, rule, Chance.of_seeds(seeds), len(seeds), block)
    while drawing.going.size:
        drawing.advance()
    return drawing.drawn


def draw_plainly(
    target: ContinuousModel, seeds: Sequence[int], last_noise: bool = True
) -> DrawnPictures:
    """Draw pictures by the target alone."""
    return draw(target, target, Undrafted(last_noise), seeds)


@dataclass(eq=False)
class ContinuousDrawing:
    """Pictures that are being drawn.

    Attributes:
        tokens: so far; places that are not ``done`` hold what nobody reads.
        done: tokens of each picture that stand.
    """

    target: ContinuousModel
    draft: ContinuousModel
    rule: ContinuousRule
    chance: Chance
    count: int
    block: int
    tokens: np.ndarray = field(init=False)
    done: np.ndarray = field(init=False)
    drawn: DrawnPictures = field(init=False)

    def __post_init__(self) -> None:
        length, size = self.target.length, self.target.size
        # the last draft may reach beyond the end
        self.tokens = np.zeros((self.count, length + self.block + 1, size))
        self.done = np.zeros(self.count, int)
        counts = (np.zeros(self.count, int) for _ in range(4))
        self.drawn = DrawnPictures(self.tokens[:, :length], *counts)

    @property
    def going(self) -> Int[np.ndarray, " going"]:
        """Numbers of the pictures that are not finished."""
        return np.flatnonzero(self.done < self.target.length)

    def advance(self) -> None:
        """Run the target once over each unfinished picture."""
        going = self.going
        first = int(np.ceil(self.rule.prefill * self.target.length))
        block = 0 if self.done[going[0]] < first else self.block
        chance, steps = self.chance.of(going), len(self.target.deviations)
        noise = chance.normal(block + 1, steps + 1, self.target.size)
        if not self.rule.last_noise:
            noise[:, :, -1] = 0.0
        drafts = self.drafted(going, noise[:, :block])
        states = self.states_behind(self.target, going, block + 1)
        points, begun = noise[:, -1, 0].copy(), np.zeros(len(going), int)
        kept = np.full(len(going), block)
        if block:
            verdict = self.rule.judge(self.target, states[:, :block], drafts, chance)
            kept, failed = verdict.kept, verdict.kept < block
            points[failed], begun[failed] = verdict.points[failed], verdict.steps[failed]
        own = states[np.arange(len(going)), kept]
        token = finished(self.target, own, points, begun, noise[:, -1, 1:])
        self.note(going, kept, block, steps - begun)
        self.commit(going, kept, token)

    def drafted(
        self, going: Int[np.ndarray, " going"], noise: Float[np.ndarray, "going block points size"]
    ) -> ContinuousDrafts:
        """Draw tokens behind those that stand, by the draft model."""
        model = self.draft
        points, means = np.zeros_like(noise), np.zeros_like(noise[:, :, 1:])
        points[:, :, 0] = noise[:, :, 0]
        for place in range(noise.shape[1]):
            state = self.states_behind(model, going, place + 1)[:, place]
            for step, deviation in enumerate(model.deviations):
                steps = np.full(len(going), step)
                means[:, place, step] = model.means(state, points[:, place, step], steps)
                moved = means[:, place, step] + deviation * noise[:, place, step + 1]
                points[:, place, step + 1] = moved
            self.tokens[going, self.done[going] + place] = points[:, place, -1]
        return ContinuousDrafts(noise, points, means, model.deviations)

    def states_behind(
        self, model: ContinuousModel, going: Int[np.ndarray, " going"], count: int
    ) -> Float[np.ndarray, "going count features"]:
        """States for the next tokens of each picture; places beyond the end take the last one's."""
        done = self.done[going]
        last = min(int(done.max()) + count, model.length) - 1
        states = model.states(self.tokens[going, :last])
        places = np.minimum(done[:, None] + np.arange(count), last)
        return np.take_along_axis(states, places[:, :, None], axis=1)

    def note(
        self,
        going: Int[np.ndarray, " going"],
        kept: Int[np.ndarray, " going"],
        block: int,
        left: Int[np.ndarray, " going"],
    ) -> None:
        """Count a pass; places beyond the end do not count.

        Args:
            left: steps that the target takes to finish a token.
        """
        room = self.target.length - self.done[going]
        inside = np.minimum(kept, room)
        judged = self.rule.head_passes(len(self.target.deviations)) if block else 0
        self.drawn.passes[going] += 1
        self.drawn.head_passes[going] += judged + np.where(inside < room, left, 0)
        self.drawn.kept[going] += inside
        self.drawn.tested[going] += inside + ((kept < block) & (kept < room))

    def commit(
        self,
        going: Int[np.ndarray, " going"],
        kept: Int[np.ndarray, " going"],
        token: Float[np.ndarray, "going size"],
    ) -> None:
        """Let drafted tokens stand up to the first that fails, and the target's own behind them.

        Tokens behind that one were drafted behind another token than the one that stands there, so
        they are forgotten.
        """
        self.tokens[going, self.done[going] + kept] = token
        self.done[going] += kept + 1


def finished(
    model: ContinuousModel,
    states: Float[np.ndarray, "rows features"],
    points: Float[np.ndarray, "rows size"],
    begun: Int[np.ndarray, " rows"],
    noise: Float[np.ndarray, "rows steps size"],
) -> Float[np.ndarray, "rows size"]:
    """Finish chains, each from the step that it has come to."""
    points = points.copy()
    for step, deviation in enumerate(model.deviations):
        rows = np.flatnonzero(begun <= step)
        if rows.size:
            means = model.means(states[rows], points[rows], np.full(len(rows), step))
            points[rows] = means + deviation * noise[rows, step]
    return points
