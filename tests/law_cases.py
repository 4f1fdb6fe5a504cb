"""Cases for tests of distributions: every pair of shape and verifier, sampling options, models that
read contexts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import ClassVar

import pytest
from scipy.stats import chi2, ncx2

from draftwood.engine import Method, Options, generate
from draftwood.models.model import Model
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler, Sampling
from draftwood.shapes import (
    BestFirst,
    Independent,
    Paths,
    Sequoia,
    Shape,
    StochasticBeam,
    Widths,
)
from draftwood.shapes.shape import Expand
from draftwood.testing import TableModel, distance, outcomes, sampled_law
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.verifiers import (
    Block,
    GreedyPlusOne,
    KSeq,
    Match,
    NodeProbs,
    Rejection,
    Traversal,
    Verdict,
    Verifier,
)
from roads import MergedGraph, Until, normals, torch

# Each beside one that is branching or deep alike with as few outcomes as that can have, where all
# of them can be enumerated.
CASES: list[tuple[Shape, Shape | None]] = [
    (Widths((1, 1)), Widths((1, 1))),
    (Widths((2, 2)), Widths((2, 1))),
    (Widths((3, 1), budget=5), Widths((1, 2), budget=3)),
    (Widths((2, 2), "independent"), Widths((2, 1), "independent")),
    (Widths((3, 2), "greedy-plus-one"), Widths((2, 1), "greedy-plus-one")),
    (Independent(2, 2), Independent(2, 2)),
    (StochasticBeam(2, 2), None),
    (StochasticBeam(3, 2, budget=5), None),
    (Paths(((0,), (1,), (0, 0), (0, 1))), None),
    (BestFirst(2, 2, 4), None),
    (
        Sequoia((0.5, 0.2, 0.1), budget=5, max_depth=2),
        Sequoia((0.5, 0.2), budget=3, max_depth=2),
    ),
]
if torch is not None:  # shapes of a package that needs it
    CASES += [
        (Until(3, 0.3, spread=0.3), None),
        (Until(3, 0.3, "probability"), Until(2, 0.5, "probability")),
        (MergedGraph(3, 2, 5), None),
    ]
SHAPES = [shape for shape, _ in CASES]
SMALL = [small for _, small in CASES if small is not None]
VERIFIERS: list[Verifier] = [Match(), Rejection(), KSeq(), GreedyPlusOne(), Traversal(), Block()]

DISTANCE, POWER = 0.02, 0.95  # what a test must catch, and how often
LEVEL = 1e-5  # of one sampled test: how often it calls what is right wrong


def exact_pairs(shapes: Sequence[Shape]) -> Iterator[tuple[Shape, Verifier]]:
    """Every verifier on every shape for which it is exact."""
    for shape, verifier in product(shapes, VERIFIERS):
        if shape.draw in verifier.exact_for and (
            verifier.name != "block" or shape.nodes == shape.depth
        ):
            yield shape, verifier


def options(temperature: float = 0.9, top_k: int = 3, top_p: float = 0.8) -> dict[str, Sampling]:
    """Every subset of three kinds of options, by name, for vocabularies of at least three
    tokens."""
    kinds = {
        "top-p": {"top_p": top_p},
        "top-k + min-p": {"top_k": top_k, "min_p": 0.1},
        "penalties + bias": {
            **{"repetition_penalty": 1.3, "presence_penalty": 0.3, "frequency_penalty": 0.2},
            "logit_bias": {0: 0.6, 1: -0.4},
        },
    }
    found = {}
    for chosen in product((False, True), repeat=len(kinds)):
        names = [name for name, taken in zip(kinds, chosen, strict=True) if taken]
        arguments = {key: value for name in names for key, value in kinds[name].items()}
        found[", ".join(names) or "temperature alone"] = Sampling(temperature, **arguments)
    return found


PROMPT, TOKENS = [2, 0, 1, 1, 2], 3


def text_distance(
    patch: pytest.MonkeyPatch,
    method: Method,
    model: Model,
    options: Options,
    reference: Sampler,
    steps: int = 1,
) -> float:
    """Distance between the distributions of a method's text and of a model's own under a sampler.

    The first token comes from the prompt's run; behind it so many steps are enumerated, with what
    drafter and model remember of the first in the second. The model itself writes what is left of
    ``TOKENS``.
    """

    def write(rng: Rng) -> tuple[int, ...]:
        patch.setattr("draftwood.engine.sequence.Rng", lambda seed, noise: rng)
        text = generate(model, method.drafter, method.verifier, PROMPT, options)
        emitted = [
            token for _, step in zip(range(1 + steps), text, strict=False) for token in step.tokens
        ]
        text.close()  # type: ignore[attr-defined]
        return tuple(emitted[: 1 + TOKENS])

    law: dict[tuple[int, ...], float] = {}
    starts: dict[tuple[int, ...], float] = {}
    for probability, start in outcomes(write):
        starts[start] = starts.get(start, 0.0) + probability
    for start, probability in starts.items():
        context = Context([*PROMPT, *start], len(PROMPT))
        for rest, chance in sampled_law(model, reference, context, 1 + TOKENS - len(start)).items():
            law[(*start, *rest)] = law.get((*start, *rest), 0.0) + probability * chance
    return distance(law, sampled_law(model, reference, Context(PROMPT, len(PROMPT)), 1 + TOKENS))


@cache
def contextual(vocab: int, order: int = 3, seed: int = 0) -> tuple[TableModel, TableModel]:
    """A target that looks at the last ``order`` tokens, and a draft model that is often right about
    it.
    """
    shape = (vocab,) * (order + 1)
    target, other = (1.2 * each for each in normals(seed, shape, shape))
    return TableModel(target), TableModel(0.6 * target + 0.8 * other)


@dataclass(frozen=True)
class Slipping:
    """A wrong rule: now and then the likeliest token instead of a drawn one, so that each step's
    law is ``by`` off.
    """

    rule: Verifier
    by: float = DISTANCE
    name = "slipping"

    @property
    def exact_for(self) -> frozenset[Draw]:
        return self.rule.exact_for

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        verdict = self.rule(tree, target_probs, rng)
        row = target_probs[0]
        others = 1.0 - float(row.max())
        if others > self.by and rng.accept(self.by / others):
            return Verdict([], int(row.argmax()))
        return verdict


@dataclass(frozen=True)
class ThrownAway:
    """A wrong rule: the unlikely token that stops a chain is thrown away."""

    name: ClassVar[str] = "thrown-away"
    draw: Draw = "distinct"
    nodes: int = 2
    depth: int = 2
    label: str = "two, if likely"

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        tree = Until(self.depth, 0.5, "probability").grow(root, expand, rng, max_draft_len)
        assert tree.probs is not None
        unlikely = tree.probs[-1, tree.tokens[-1]] < 0.5
        return tree.truncated(len(tree) - 2) if bool(unlikely) else tree


def sample_size(
    cells: int, distance: float = DISTANCE, level: float = LEVEL, power: float = POWER
) -> int:
    """Draws with which a chi-square test over so many cells finds every law at this total variation
    so often.

    A law that puts ``distance`` more on half of the mass and as much less on the other half is the
    hardest to find: it adds 4 distance^2 for every draw to the test's noncentrality.
    """
    freedom, low, high = cells - 1, 1.0, 1e6
    critical = chi2.isf(level, freedom)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if ncx2.sf(critical, freedom, middle) >= power else (middle, high)
    return math.ceil(high / (4 * distance**2))


def coupled_size(distance: float = DISTANCE, power: float = POWER) -> int:
    """Pairs of draws among which, if their laws are this far apart, two differ so often, however
    they are coupled.
    """
    return math.ceil(math.log(1 - power) / math.log(1 - distance))
