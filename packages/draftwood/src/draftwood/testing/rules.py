"""Checks of rules of sampling: drafted texts have the distribution of texts without drafts.

They are for packages that bring rules, and need no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float
from draftwood.drafters import DraftModel
from draftwood.engine.options import Options
from draftwood.engine.scheduler import generate
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.shapes import Widths
from draftwood.testing.promises import SIGNIFICANCE, Check, CheckResult, tables
from draftwood.testing.statistics import ranked_chi_square
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import NodeProbs, Rejection, Verdict, Verifier

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
    """A wrong verifier: at every node rules read the root's context, not the node's own."""

    name: ClassVar[str] = "at-the-root"
    exact_for: ClassVar[frozenset[Draw]] = Rejection.exact_for

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        assert isinstance(target_probs, LazyProbs)
        assert isinstance(target_probs.sampler, Sampling)
        root = target_probs.before.extended([tree.token_list[0]])
        wrong = replace(target_probs, sampler=_At(target_probs.sampler, root))
        return Rejection()(tree, wrong, rng)


def rule_p_value(rules: Mapping[str, float], tree: Widths, verifier: Verifier) -> float:
    """P-value of texts that were drafted under rules, each token given all tokens before it.

    Args:
        rules: strengths by name, as in ``SamplingParams.rules``.
    """
    target, draft = tables()
    sampling = Sampling(1.0, rules=rules)
    tokens, chances = list[int](), list[np.ndarray]()
    for seed in range(TEXTS):
        context = Context([seed % target.vocab_size], 1)
        options = Options(sampling, LENGTH, seed=seed)
        for step in generate(target, DraftModel(draft, tree), verifier, context.tokens, options):
            for token in step.tokens:
                row = target.logits[context.tokens[-1]][None]
                chances.append(sampling.probs(row, [context]))
                tokens.append(token)
                context = context.extended([token])
    return ranked_chi_square(np.array(tokens), np.concatenate(chances))


def rule_checks(name: str, strength: float) -> dict[str, Check]:
    """Checks of a rule, drafted by a chain and by a tree, and a control that must be caught."""
    drafted = {
        f"{name}, drafted by a {kind}": partial(_check_drafted, name, strength, kind)
        for kind in TREES
    }
    return {_control(name): partial(_check_control, name, strength), **drafted}


def _check_drafted(name: str, strength: float, kind: str) -> CheckResult:
    found = rule_p_value({name: strength}, TREES[kind], Rejection())
    told = f"{name}, drafted by a {kind}"
    return CheckResult("law", told, found >= SIGNIFICANCE, "chi-square over the engine", found)


def _check_control(name: str, strength: float) -> CheckResult:
    found = rule_p_value({name: strength}, TREES["chain"], AtTheRoot())
    caught = found < SIGNIFICANCE
    told = "caught, as it must be" if caught else "not caught"
    return CheckResult("control", _control(name), caught, told, found)


def _control(name: str) -> str:
    return f"{name} in the root's context"
