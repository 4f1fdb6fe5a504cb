"""Checks of this package, which ``draftwood check`` runs: laws of drafted texts under a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.drafters import DraftModel
from draftwood.engine import Options, generate
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.shapes import Widths
from draftwood.testing import ranked_chi_square
from draftwood.testing.promises import SIGNIFICANCE, Check, CheckResult, tables
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import NodeProbs, Rejection, Verdict, Verifier

RULES = {"momentum": 0.1}
TREES = {"chain": Widths((1, 1, 1)), "tree": Widths((2, 2))}
TEXTS, LENGTH = 20, 100


@dataclass(frozen=True, eq=False)
class _At:
    """A sampler that reads these tokens, wherever it is asked; implements ``Sampler``."""

    own: Sampling
    context: Context
    reads_context = True

    @property
    def greedy(self) -> bool:
        return self.own.greedy

    def for_drafting(self) -> "_At":
        return replace(self, own=self.own.for_drafting())

    def probs(
        self, logits: Float[np.ndarray, "rows vocab"], contexts: Sequence[Context] = ()
    ) -> Float[np.ndarray, "rows vocab"]:
        return self.own.probs(logits, [self.context] * len(logits))


@dataclass(frozen=True)
class AtTheRoot:
    """A wrong verifier: at every node the rule reads the root's context, not the node's own."""

    name: ClassVar[str] = "at-the-root"
    exact_for: ClassVar[frozenset[Draw]] = Rejection.exact_for

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        assert isinstance(target_probs, LazyProbs)
        assert isinstance(target_probs.sampler, Sampling)
        root = target_probs.before.extended([tree.token_list[0]])
        wrong = replace(target_probs, sampler=_At(target_probs.sampler, root))
        return Rejection()(tree, wrong, rng)


def p_value(tree: Widths, verifier: Verifier) -> float:
    """P-value of texts drafted under ``RULES``, each token given all tokens before it."""
    target, draft = tables()
    sampling = Sampling(1.0, rules=RULES)
    tokens, laws = list[int](), list[np.ndarray]()
    for seed in range(TEXTS):
        context = Context([seed % target.vocab_size], 1)
        options = Options(sampling, LENGTH, seed=seed)
        for step in generate(target, DraftModel(draft, tree), verifier, context.tokens, options):
            for token in step.tokens:
                row = target.logits[context.tokens[-1]][None]
                laws.append(sampling.probs(row, [context]))
                tokens.append(token)
                context = context.extended([token])
    return ranked_chi_square(np.array(tokens), np.concatenate(laws))


def check_drafted(tree: str) -> CheckResult:
    """Hold the distribution of drafted texts to that of texts without drafts."""
    found = p_value(TREES[tree], Rejection())
    return CheckResult("law", f"momentum, drafted by a {tree}", found >= SIGNIFICANCE, "", found)


def check_caught() -> CheckResult:
    """Catch a rule that reads the root's context at every node."""
    found = p_value(TREES["chain"], AtTheRoot())
    caught = found < SIGNIFICANCE
    told = "caught, as it must be" if caught else "not caught"
    return CheckResult("control", "momentum in the root's context", caught, told, found)


CHECKS: Mapping[str, Check] = {
    "momentum in the root's context": check_caught,
    **{f"momentum, drafted by a {tree}": partial(check_drafted, tree) for tree in TREES},
}
