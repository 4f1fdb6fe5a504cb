"""Draw pictures: one method, one name, a picture for each seed."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from draftwood import engine
from draftwood.engine import Limits, Method, Options, run_all
from draftwood.models.model import Model
from draftwood.sampling import Sampling
from draftwood.stats import Stats, Step
from draftwood_images.codec import Codes, Pixels
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.layout import Raster


@dataclass(frozen=True)
class DrawingRule:
    """Rule by which each code is drawn.

    Attributes:
        temperature: 0 takes the likeliest code.
        top_k: codes that a draw is restricted to; 0 for all.
        guidance: scale of the difference that the words make; 1 for the model's own.
    """

    temperature: float = 1.0
    top_k: int = 0
    guidance: float = 1.0


@dataclass(eq=False)
class DrawnPicture:
    """A picture and how it was drawn.

    Attributes:
        name: of what it shows.
        seed: of its draws.
        codes: [rows columns].
        pixels: of it.
        steps: passes of the model, the prompt's first.
        seconds: from the first pass to the last, other pictures' work among them.
    """

    name: str
    seed: int
    codes: Codes
    pixels: Pixels
    steps: list[Step] = field(repr=False)
    seconds: float

    @cached_property
    def stats(self) -> Stats:
        """Sums over its passes."""
        return Stats.of(self.steps)

    @property
    def given(self) -> list[int]:
        """Tokens that each pass gave."""
        return [len(step.tokens) for step in self.steps]

    @property
    def failures(self) -> list[int]:
        """Places, from 0 on, where a draft token was rejected."""
        found, place = list[int](), 0
        for step in self.steps:
            place += len(step.tokens)
            if step.drafted > step.accepted:
                found.append(place - 1)
        return found

    def as_json(self) -> dict[str, object]:
        """In plain types, without pixels."""
        return {
            "name": self.name,
            "seed": self.seed,
            "passes": self.stats.target_runs,
            "tokens": self.stats.tokens,
            "tokens_per_pass": round(self.stats.block_efficiency, 4),
            "seconds": round(self.seconds, 4),
            "codes": self.codes.tolist(),
            "given": self.given,
            "failures": self.failures,
        }


class Easel:
    """Draws pictures of one name by one rule and method.

    Args:
        drawing: the model.
        name: of what is drawn.
        rule: by which each code is drawn.

    Raises:
        ValueError: for words that the model does not know, and values out of range.
    """

    def __init__(self, drawing: DrawingModel, name: str, rule: DrawingRule) -> None:
        self.drawing, self.name, self.rule = drawing, name, rule
        self.prompt = drawing.prompt(name)
        self.model: Model = drawing.guided(rule.guidance, self.prompt)
        most, length = self.model.context_length, drawing.layout.length
        if most is not None and len(self.prompt) + length > most:
            raise ValueError(
                f"the name has {len(self.prompt)} tokens and its picture {length}, but the model"
                f" holds {most} in all; give a shorter name"
            )
        has_lines = drawing.layout.line_end is not None
        self.constraint = Raster(drawing.layout) if has_lines else None
        bias = None if has_lines else drawing.layout.bias
        self.sampling = Sampling(rule.temperature, top_k=rule.top_k, logit_bias=bias)

    def text(self, method: Method, seed: int, tokens: int | None = None) -> engine.Sequence:
        """A picture that has not begun.

        Args:
            tokens: of its first part; None for all of it.
        """
        options = Options(
            self.sampling,
            tokens or self.drawing.layout.length,
            seed=seed,
            exact=method.lossless,
            constraint=self.constraint,
        )
        return engine.Sequence(self.model, method.drafter, method.verifier, self.prompt, options)

    def pieces(
        self, method: Method, seeds: Sequence[int], tokens: int
    ) -> Iterator[tuple[int, Step]]:
        """Draw the first tokens of pictures that share passes; yields (place of the seed, step)."""
        texts = [self.text(method, seed, tokens) for seed in seeds]
        return run_all(texts, Limits(requests=len(texts)))

    def draw(
        self, method: Method, seeds: Sequence[int], together: int = 1
    ) -> Iterator[DrawnPicture]:
        """Yield each picture as it is finished.

        Args:
            method: built for this model.
            seeds: of the pictures.
            together: pictures that share each pass.
        """
        texts = [self.text(method, seed) for seed in seeds]
        steps: list[list[Step]] = [[] for _ in texts]
        begun: dict[int, float] = {}
        since = time.perf_counter()
        for number, step in run_all(texts, Limits(requests=max(1, together))):
            begun.setdefault(number, since)
            steps[number].append(step.without_probs())
            since = time.perf_counter()
            if sum(len(each.tokens) for each in steps[number]) == self.drawing.layout.length:
                yield self._finished(seeds[number], steps[number], since - begun[number])
                since = time.perf_counter()

    def _finished(self, seed: int, steps: list[Step], seconds: float) -> DrawnPicture:
        tokens = [token for step in steps for token in step.tokens]
        codes = self.drawing.layout.grid(tokens)
        return DrawnPicture(self.name, seed, codes, self.drawing.paint(codes), steps, seconds)
