"""Prices of methods on tasks, each exercise with exact distributions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from draftwood.engine import Options
from draftwood.sampling import Sampling
from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.lists.list_model import list_model
from draftwood_diffusion.lists.price import Price, price, unwritten
from draftwood_diffusion.lists.tasks import Exercise, exercises
from draftwood_diffusion.loop import written
from draftwood_diffusion.unmasking import Unmasking, parse

TEXTS = 20  # that a lookahead writes, to count its passes


@dataclass(frozen=True)
class Cell:
    """A method on a task, on average over its exercises.

    Attributes:
        task, method: their names.
        bits: divergence of the task's answers from the method's, of a text.
        accuracy: probability of a right answer.
        passes: that a right answer takes.
        tokens: of an answer.
    """

    task: str
    method: str
    bits: float
    accuracy: float
    passes: float
    tokens: float

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes


@dataclass(frozen=True)
class Parallel:
    """Measurement of methods on tasks.

    Attributes:
        tasks, methods: names, and methods as users type them.
        items: of a list.
        count: exercises of a task.
        block_length: of the model.
        seed: of the first exercise.
    """

    tasks: Sequence[str]
    methods: Sequence[str]
    items: int
    count: int
    block_length: int
    seed: int

    def run(self) -> Iterator[Cell]:
        """Measure each method on each task, task by task."""
        parsed = {name: parse(name) for name in self.methods}
        for name, method in parsed.items():
            if method.reuse.keeps_prefix:
                raise ValueError(f"{name} keeps keys, which lists have not; name a --model as well")
        # all are made before any is measured, as a task may be refused
        made = [exercises(task, self.items, self.count, self.seed) for task in self.tasks]
        for task, found in zip(self.tasks, made, strict=True):
            for name, method in parsed.items():
                prices = [self._price(each, method) for each in found]
                yield Cell(task, name, *_means(prices))

    def _price(self, exercise: Exercise, method: Unmasking) -> Price:
        if isinstance(method.blocks, AdaBlock):
            # where no token breaks lines, one that nobody predicts stands for it
            delimiters = exercise.delimiters or frozenset({exercise.listed().mask})
            method = replace(method, blocks=replace(method.blocks, delimiters=delimiters))
        listed, prompt = exercise.listed(), exercise.prompt
        found = price(unwritten(listed, prompt, method, self.block_length, self.seed))
        if method.lookahead.name == "step":
            return found
        return replace(found, passes=self._passes(exercise, method))

    def _passes(self, exercise: Exercise, method: Unmasking) -> float:
        """Passes of a method that looks ahead, on average over texts."""
        listed, prompt = exercise.listed(), list(exercise.prompt)
        # blocks are counted from the end of the prompt, as prices are
        length = min(self.block_length, listed.places)
        masked = list_model(listed, length, bidirectional=True)
        runs = 0
        for seed in range(TEXTS):
            options = Options(Sampling(temperature=1.0), listed.places - len(prompt), seed=seed)
            runs += written(masked, prompt, options, method).runs
        return runs / TEXTS


def _means(prices: Sequence[Price]) -> tuple[float, float, float, float]:
    """Bits, accuracy, passes and tokens on average."""
    count = len(prices)
    return (
        sum(each.bits for each in prices) / count,
        sum(each.accuracy for each in prices) / count,
        sum(each.passes for each in prices) / count,
        sum(each.tokens for each in prices) / count,
    )
