"""Does a method really leave the text alone? By identity and by chi-square.

* Greedy identity: on a real model every method must write exactly what plain decoding writes.
* Output distribution: on a model that is a small table the distribution of the text is known. Long
  texts are written by the whole engine, and the distribution of every token given the two before
  it is compared with the table's, by chi-square.
* Rules and drafts: ``acceptance`` enumerates what a rule keeps, and samples texts with drafters
  that no table can stand for.
* Controls: rules known to be wrong must be caught by the same comparison, or it proves nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from draftwood import methods
from draftwood.arrays import FloatType, as_array
from draftwood.drafters import DraftModel
from draftwood.engine.method import Method
from draftwood.engine.options import Options
from draftwood.engine.scheduler import generate
from draftwood.methods import MethodSpec
from draftwood.models.model import Model, ModelOutput, extend_in_chunks
from draftwood.optional import entry_points
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import Paths, Shape, Widths
from draftwood.shapes.shape import Expand
from draftwood.testing.models import TableModel
from draftwood.testing.statistics import chi_square, chi_square_tail
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.verifiers import KSeq, Rejection

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

# a correct program falls below this once in ten thousand runs, and the seeds are fixed
SIGNIFICANCE = 1e-4
TIE_SPACINGS = 4
EPSILON: dict[str, float] = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Spacing of a type at 1, by its name."""
VOCABULARY, TEXTS, TEXT_LENGTH = 4, 21, 100
SAMPLINGS = (Sampling(1.0), Sampling(1.0), Sampling(0.7, top_p=0.8))
"""Options of the texts, in turn."""
OVER_A_TABLE = "shape and verifier, over a table's drafts"

PROMPTS = (
    "Repeat after me, twice: The quick brown fox jumps over the lazy dog.",
    "Count from one to fifteen in words.",
    "Write a Python function that returns the larger of two numbers.",
)


@dataclass(frozen=True)
class Divergence:
    """The first place where two greedy texts differ.

    Attributes:
        position: number of the token, from 0.
        plain_token: what plain decoding wrote there; None where its text had ended.
        other_token: what the other method wrote.
        margin: difference of the target's two highest logits there.
        tolerance: margin below which the two are a tie within rounding, see ``tie_tolerance``.
        tie: whether they are, and these two tokens are the ones that tie.
    """

    position: int
    plain_token: int | None
    other_token: int | None
    margin: float
    tolerance: float
    tie: bool


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    ``passed`` is None where the check could not be made, and ``detail`` says why.
    """

    check: Literal["identity", "law", "control", "rule", "drafts"]
    name: str
    passed: bool | None
    detail: str = ""
    p_value: float | None = None
    divergence: Divergence | None = None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


Check = Callable[[], CheckResult]
"""Makes a check that needs no model."""


@dataclass(frozen=True)
class ModelCheck:
    """A check on a loaded model, which a package writes in its own way.

    Attributes:
        fits: True for models that it is for.
        make: makes it, given the model, how many texts, and tokens of each.
    """

    fits: "Callable[[LanguageModel], bool]"
    make: "Callable[[LanguageModel, int, int], CheckResult]"


CHECKS_OF_PACKAGES = "draftwood.checks"
"""Entry points of packages that name checks of their own: a mapping from what each checks to a
``Check`` or a ``ModelCheck``.
"""


def checks_of_packages() -> dict[str, Check | ModelCheck]:
    """Checks that installed packages bring, by name."""
    found = dict[str, Check | ModelCheck]()
    for entry in entry_points(CHECKS_OF_PACKAGES):
        found |= entry.load()
    return found


def checks_for(lm: "LanguageModel", texts: int, max_new_tokens: int) -> dict[str, Check]:
    """The same that a loaded model allows, those of models made of it.

    Args:
        texts: of each check on the model.
        max_new_tokens: of a text.
    """
    found = dict[str, Check]()
    for name, each in checks_of_packages().items():
        if not isinstance(each, ModelCheck):
            found[name] = each
        elif each.fits(lm):
            found[name] = partial(each.make, lm, texts, max_new_tokens)
    return found


def tie_tolerance(logit: float, dtype: FloatType) -> float:
    """Largest distance of two logits of this size that may still change places by rounding.

    A forward pass over many tokens adds up in another order than one over a single token. In 8- and
    11-bit precision every layer's result is rounded to the type once more, so two such passes
    disagree about the distance of two logits by a few spacings of the type at the logit's size: for
    SmolLM2-135M in bfloat16 by 0.7 in the mean and 4 at most. float32 has so many digits that no
    difference is excused: the tolerance is zero.
    """
    if dtype not in EPSILON:
        return 0.0
    spacing = 2.0 ** math.floor(math.log2(max(abs(logit), 2.0**-14))) * EPSILON[dtype]
    return TIE_SPACINGS * spacing


def first_divergence(
    model: Model, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Find where two greedy texts part, and how sure the target is there; None if equal."""
    if list(plain) == list(other):
        return None
    shorter = min(len(plain), len(other))
    position = next((place for place in range(shorter) if plain[place] != other[place]), shorter)
    with closing(model.start()) as session:
        output = extend_in_chunks(session, [*prompt, *plain[:position]])
    logits = output.rows[-1]
    best = np.sort(logits)[:-3:-1].tolist()
    tolerance = tie_tolerance(best[0], type_of(output))
    tokens = [text[position] if position < len(text) else None for text in (plain, other)]
    tie = (
        all(token is not None and best[0] - float(logits[token]) <= tolerance for token in tokens)
        and tolerance > 0
    )
    return Divergence(position, *tokens, margin=best[0] - best[1], tolerance=tolerance, tie=tie)


def type_of(output: ModelOutput) -> Any:
    """Name of the type that a model's logits come in."""
    return str(output.given.dtype).removeprefix("torch.")


def check_identity(
    plain: "LanguageModel",
    others: Sequence["LanguageModel"],
    max_new_tokens: int,
) -> Iterator[CheckResult]:
    """Greedy texts of every method against plain decoding, prompt by prompt.

    A method ends at its first failure.
    """
    encoded = [plain.encode(prompt) for prompt in PROMPTS]
    wanted = [plain.generate(tokens, max_new_tokens=max_new_tokens).token_ids for tokens in encoded]
    for other in others:
        yield _identity(plain.model, other, list(zip(encoded, wanted, strict=True)), max_new_tokens)


def _identity(
    model: Model,
    other: "LanguageModel",
    cases: list[tuple[list[int], list[int]]],
    max_new_tokens: int,
) -> CheckResult:
    compared, ties = 0, []
    for prompt, plain in cases:
        tokens = other.generate(prompt, max_new_tokens=max_new_tokens).token_ids
        compared += len(tokens)
        found = first_divergence(model, prompt, plain, tokens)
        if found is not None and not found.tie:
            return CheckResult(
                "identity", other.method.name, False, describe(found), divergence=found
            )
        ties += [found] if found is not None else []
    detail = f"{compared} tokens of {len(cases)} texts the same"
    if ties:
        detail = f"{len(ties)} of {len(cases)} texts part at a tie; {describe(ties[0])}"
    return CheckResult(
        "identity", other.method.name, True, detail, divergence=ties[0] if ties else None
    )


def describe(found: Divergence) -> str:
    """A divergence in words."""
    there = (
        f"token {found.position}: {found.plain_token} in plain decoding, {found.other_token} here"
    )
    margin = f"the two top logits are {found.margin:.3g} apart"
    if found.tolerance == 0:
        return f"{there}; {margin}"
    return (
        f"{there}; {margin}, {'a tie' if found.tie else 'no tie'} within rounding"
        f" ({found.tolerance:.3g})"
    )


def stood_for(recipe: MethodSpec) -> bool:
    """True if a table's drafts stand for those of the method's drafter.

    A table has no layers to skip and no hidden states.
    """
    return bool({"layers", "head"} & recipe.needs)


def check_law(recipe: MethodSpec) -> CheckResult:
    """The distribution of a method's text on the table model, decoded by the whole engine.

    Where ``stood_for``, the result is one of shape and verifier alone, and says so.
    """
    target, draft = tables()
    p_value = law_p_value(_on_table(recipe, target, draft), target)
    detail = OVER_A_TABLE if stood_for(recipe) else "chi-square over the engine"
    return CheckResult("law", recipe.name, p_value >= SIGNIFICANCE, detail, p_value)


def check_controls() -> Iterator[CheckResult]:
    """Rules that are wrong; each must be caught."""
    target, draft = tables()
    for name, shape, verifier in (
        ("siblings verified in order of probability", ProbabilityOrder(Widths((3,))), Rejection()),
        (
            "likeliest tokens called drawn",
            Mislabelled(Widths((3,), "greedy-plus-one"), "distinct"),
            Rejection(),
        ),
        ("K-SEQ on distinct siblings", Mislabelled(Widths((3,)), "independent"), KSeq()),
    ):
        p_value = law_p_value(Method(DraftModel(draft, shape), verifier, name), target)
        caught = p_value < SIGNIFICANCE
        yield CheckResult(
            "control", name, caught, "caught, as it must be" if caught else "not caught", p_value
        )


CONTROLS = 3


def tables() -> tuple[TableModel, TableModel]:
    """A target and a draft model of known distributions.

    They are far apart, so that a wrong rule shows soon, and no pair of tokens is rare.
    """
    laws = np.array([[0.5, 0.2, 0.2, 0.1], [0.05, 0.65, 0.15, 0.15]], np.float32)
    target, draft = (
        np.log(np.stack([np.roll(law, token) for token in range(VOCABULARY)])) for law in laws
    )
    return TableModel(target), TableModel(draft)


def law_p_value(method: Method, target: TableModel) -> float:
    """P-value of a method's texts under the target's distribution.

    It is the probability of texts at least this far from that distribution, if the method changes
    nothing. Given the token before, a token of a table's text depends on nothing else; so under all
    options and for every pair of tokens, what follows it is a sample of a known distribution,
    whatever blocks the text was written in. The pairs' chi-square values are joined by Fisher's
    rule.
    """
    followers: dict[tuple[Sampling, int, int], Counter[Hashable]] = {}
    for text in range(TEXTS):
        sampling = SAMPLINGS[text % len(SAMPLINGS)]
        options = Options(sampling, TEXT_LENGTH, seed=text)
        tokens = [text % VOCABULARY]
        for step in generate(target, method.drafter, method.verifier, list(tokens), options):
            tokens += step.tokens
        for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
            followers.setdefault((sampling, first, second), Counter())[third] += 1
    logits = as_array(target.logits).astype(np.float64)
    laws = {sampling: sampling.probs(logits) for sampling in SAMPLINGS}
    values = [
        chi_square(counts, laws[sampling][second])
        for (sampling, _, second), counts in followers.items()
    ]
    if min(values) == 0.0:
        return 0.0
    return chi_square_tail(-2.0 * sum(map(math.log, values)), 2 * len(values))


def _on_table(recipe: MethodSpec, target: TableModel, draft: TableModel) -> Method:
    """The method on the table; where ``stood_for``, it drafts with the second table."""
    if isinstance(recipe.shape, Paths):
        recipe = replace(recipe, shape=Paths())  # of few tokens
    if stood_for(recipe):
        recipe = replace(recipe, drafter=DraftModel, shape=recipe.shape or Widths((1, 1)))
    takes = recipe.needs | recipe.uses
    return methods.build(recipe, target, draft if "draft-model" in takes else None)


@dataclass(frozen=True)
class _Around:
    """A shape around another one: as large and as deep."""

    shape: Shape

    @property
    def nodes(self) -> int:
        return self.shape.nodes

    @property
    def depth(self) -> int:
        return self.shape.depth


@dataclass(frozen=True)
class ProbabilityOrder(_Around):
    """A wrong rule: drawn siblings are in order of probability, not of drawing. One level only."""

    name: ClassVar[str] = "probability-order"

    @property
    def draw(self) -> Draw:
        return self.shape.draw

    @property
    def label(self) -> str:
        return f"{self.shape.label}, by probability"

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        tree = self.shape.grow(root, expand, rng, max_draft_len)
        assert tree.probs is not None  # siblings were drawn
        order = 1 + (-tree.probs[0, tree.tokens[1:]]).argsort()
        return replace(tree, tokens=tree.tokens[[0, *order]])


@dataclass(frozen=True)
class Mislabelled(_Around):
    """A wrong rule: the tree says that its siblings were drawn in another way than they were."""

    name: ClassVar[str] = "mislabelled"
    draw: Draw

    @property
    def label(self) -> str:
        return f"{self.shape.label}, called {self.draw}"

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        return replace(self.shape.grow(root, expand, rng, max_draft_len), draw=self.draw)
