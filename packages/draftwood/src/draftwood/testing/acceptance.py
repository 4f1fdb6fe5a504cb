"""Checks of rules by enumeration, and of drafters by sampling on a loaded model."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from draftwood.engine.options import Options
from draftwood.engine.scheduler import generate
from draftwood.methods import MethodSpec
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.testing.checks import check_verifier
from draftwood.testing.promises import PROMPTS, CheckResult
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Match, NodeProbs, Verdict, Verifier

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

SAMPLED_TOKENS = 24  # each is compared with a whole row of the vocabulary
GROSS = 1e-6
"""P-value of one sampled text from which a drafter counts as wrong; there is one for each."""


def rules_of(recipes: Sequence[MethodSpec]) -> list[Verifier]:
    """The rules of some methods, each once."""
    found: list[Verifier] = []
    for recipe in recipes:
        if recipe.verifier not in found:
            found.append(recipe.verifier)
    return found


def check_rule(verifier: Verifier) -> CheckResult:
    """``check_verifier`` on the rule of a method."""
    try:
        check_verifier(verifier)
    except AssertionError as error:
        return CheckResult("rule", verifier.name, False, str(error))
    return CheckResult("rule", verifier.name, True, "every outcome on small tables")


@dataclass(frozen=True)
class Unasked:
    """A wrong rule: of what it rejects at this depth or below, it keeps some all the same."""

    name: ClassVar[str] = "unasked"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"chosen"})
    depth: int
    chance: float

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        verdict = Match()(tree, target_probs, rng)
        rejected = tree.children[verdict.path[-1] if verdict.path else 0]
        if not rejected or len(verdict.path) < self.depth or not rng.accept(self.chance):
            return verdict
        kept = rejected[0]
        return Verdict([*verdict.path, kept], rng.draw(target_probs[kept]))


WRONG_RULES = {
    "one rejected draft token of 20 kept": Unasked(0, 0.05),
    "rejected draft tokens kept below the first level": Unasked(1, 1.0),
}


def check_wrong_rules() -> Iterator[CheckResult]:
    """Rules that are wrong; ``check_rule`` must catch each."""
    for name, verifier in WRONG_RULES.items():
        caught = not check_rule(verifier).passed
        detail = "caught, as it must be" if caught else "not caught"
        yield CheckResult("control", name, caught, detail)


@dataclass(frozen=True, eq=False)
class _NotedDraws:
    """A rule that notes the first of drawn siblings, and the row that each is said to come from."""

    rule: Verifier
    tokens: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def exact_for(self) -> frozenset[Draw]:
        return self.rule.exact_for

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        if tree.is_drawn and tree.draw in ("distinct", "independent"):
            for first in (below[0] for below in tree.children if below):
                self.tokens.append(tree.token_list[first])
                self.rows.append(np.array(tree.row_of(first)))
        return self.rule(tree, target_probs, rng)


def likeliest_p_value(tokens: Sequence[int], rows: Sequence[np.ndarray] | np.ndarray) -> float:
    """P-value of how many tokens are the likeliest of the rows that they were drawn from.

    It is exact, however few they are: the count is a sum of independent throws.
    """
    law, count = np.ones(1), 0
    for token, row in zip(tokens, rows, strict=True):
        chance = min(1.0, float(row[row == row.max()].sum()))  # equals count as one
        law = np.convolve(law, [1.0 - chance, chance])
        count += bool(row[token] == row.max())
    return min(1.0, 2.0 * float(min(law[: count + 1].sum(), law[count:].sum())))


def check_drafts(other: "LanguageModel") -> CheckResult:
    """A text that a method samples on a loaded model, with the drafter that it has there.

    Each token is compared with the model's own distribution behind all tokens before it, and the
    first of drawn siblings with the row that the drafter says it was drawn from. They are few, so
    it is gross mistakes that show.
    """
    method, sampling, prompt = other.method, Sampling(1.0), other.encode(PROMPTS[-1])
    options, watched = Options(sampling, SAMPLED_TOKENS, seed=0), _NotedDraws(method.verifier)
    steps = generate(other.model, method.drafter, watched, prompt, options)  # type: ignore[arg-type]
    text = [token for step in steps for token in step.tokens]
    with closing(other.model.start()) as session:
        rows = session.extend([*prompt, *text[:-1]]).rows[len(prompt) - 1 :]
    p_value = likeliest_p_value(text, sampling.probs(rows))
    detail = f"{len(text)} tokens"
    if watched.tokens:
        drawn = likeliest_p_value(watched.tokens, watched.rows)
        p_value, detail = min(p_value, drawn), f"{detail}, {len(watched.tokens)} draws"
    return CheckResult("drafts", method.name, p_value >= GROSS, detail, p_value)
