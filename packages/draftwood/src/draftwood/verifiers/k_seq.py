"""SpecTr's k-sequential selection for independent siblings."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float
from draftwood.native.rows import overlap
from draftwood.native.step import Rule
from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import require_known, with_token
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class KSeq:
    """Accept each of k independent siblings with probability min(1, p / (rho q)).

    The probability is the same for each, and they are tested in drawing order. The factor rho
    between 1 and k is the smallest for which p covers what k such tests accept. Sun et al. 2023
    (SpecTr, arXiv:2310.15141): acceptance is at least 1 - (1 - 1/k)^k of the best possible.

    Differs from the paper: whole sequences are drafted there; here the rule runs once per level, on
    the children of all siblings that hold the accepted token, so k is the number of draft tokens
    still alive at that level.
    """

    name: ClassVar[str] = "k-seq"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"independent"})
    library_rule: ClassVar[Rule] = "k-seq"

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        require_known(tree, target_probs)
        alive = [0]  # siblings that drew the same token are one node of the sequence
        while True:
            candidates = [child for node in alive for child in tree.children[node]]
            p = target_probs[alive[0]]
            if not candidates or not tree.is_drawn:
                return Verdict(tree.path_to(alive[0]), rng.draw(p))
            q = tree.row_of(candidates[0])
            rho = division_factor(p, q, len(candidates))
            for child in candidates:
                token = tree.token_list[child]
                drafted = float(q[token])
                if drafted > 0.0 and rng.accept(float(p[token]) / (rho * drafted)):
                    break
            else:
                return Verdict(
                    tree.path_to(alive[0]), rng.draw(_left_over(p, q, rho, len(candidates)))
                )
            alive = with_token(tree, candidates, token)


def division_factor(
    p: Float[np.ndarray, " vocab"], q: Float[np.ndarray, " vocab"], count: int
) -> float:
    """The smallest rho at which p covers what ``count`` tests accept, from above to rounding.

    With beta = sum(min(p / rho, q)) one test accepts beta, all tests 1 - (1 - beta)^count, and p
    can give at most rho * beta. The difference grows with rho and is found by false position
    (Illinois): about eight looks at the vocabulary, where bisection needs thirty and sorting the
    tokens by p / q costs as much as forty.
    """
    low, high = 1.0, float(count)
    if count == 1 or (slack_low := _slack(p, q, low, count)) >= 0.0:
        return low
    slack_high = _slack(p, q, high, count)
    tolerance, side = 4 * float(np.finfo(p.dtype).eps), 0
    while high - low > tolerance * high and slack_high > tolerance:
        rho = (low * slack_high - high * slack_low) / (slack_high - slack_low)
        if not low < rho < high:
            break
        slack = _slack(p, q, rho, count)
        if slack >= 0.0:
            # the end that stays twice in a row is pulled in
            slack_low = slack_low / 2 if side > 0 else slack_low
            high, slack_high, side = rho, slack, 1
        else:
            slack_high = slack_high / 2 if side < 0 else slack_high
            low, slack_low, side = rho, slack, -1
    return high


def _slack(
    p: Float[np.ndarray, " vocab"], q: Float[np.ndarray, " vocab"], rho: float, count: int
) -> float:
    beta = min(overlap(p, q, rho), 1.0)
    return rho * beta - (1.0 - (1.0 - beta) ** count)


def _left_over(
    p: Float[np.ndarray, " vocab"], q: Float[np.ndarray, " vocab"], rho: float, count: int
) -> Float[np.ndarray, " vocab"]:
    """Part of p that the tests do not give out, unnormalised.

    It is p itself where they can give nothing or everything.
    """
    kept = np.minimum(p / rho, q)
    beta = min(float(kept.sum()), 1.0)
    if beta == 0.0:
        return p
    rest = np.maximum(p - kept * ((1.0 - (1.0 - beta) ** count) / beta), 0.0)
    return rest if rest.sum() > 0 else p
