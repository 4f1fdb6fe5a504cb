"""Outcomes of a pass of the target, likeliest first, by what the drafter knows of it."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import log

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.drafters.ahead import BranchingSession
from draftwood.native.rows import softmax, topk
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampler
from draftwood.tree import DraftTree
from draftwood.verifiers.verifier import Verdict, Verifier, follows_draws

ACCEPTED = 0.7
"""Chance that a child that was drawn is accepted, where nothing more is known."""

FIRST = 0.6
"""Chance that the target draws what would be drawn by the drafter's own probabilities."""

SPARE = 8
"""Tokens of a row that are looked at beyond those that can be needed."""

LEAST = 1e-9  # below it a chance counts as this much


@dataclass(frozen=True, eq=False)
class ForeseenOutcome:
    """One thing that may come of a pass.

    Attributes:
        tokens: accepted draft tokens, and the token after them.
        path: nodes that hold these draft tokens.
        rng: as the verdict leaves it.
    """

    tokens: tuple[int, ...]
    path: list[int]
    rng: Rng


@dataclass(frozen=True, eq=False)
class LikelyOutcomes:
    """The outcomes of verifying one tree, were the target to say nearly what the drafter says.

    The target's draws are known but for its probabilities: each token's number in the draw to come
    belongs to the seed and the place. So where draws decide, the tokens that would win them by the
    drafter's own probabilities are the likeliest outcomes.

    Args:
        tree: that is verified.
        sampler: of the target.
        before: the tokens before the root.
        verifier: that decides.
        rng: as the verdict will find it; it stays as it is.
    """

    tree: DraftTree
    sampler: Sampler
    before: Context
    verifier: Verifier
    rng: Rng

    def first(self, session: BranchingSession, most: int) -> list[ForeseenOutcome]:
        """At most so many, likeliest first; none where the session's context ends.

        Args:
            session: that has proposed the tree.
        """
        logits = session.logits_after(self.tree)
        if logits is None:
            return []
        return _Search(self, as_array(logits)).first(most)


@dataclass(frozen=True, eq=False)
class _Search:
    """Best first, by the product of chances along the tree."""

    given: LikelyOutcomes
    logits: Float[np.ndarray, "nodes vocab"]

    def first(self, most: int) -> list[ForeseenOutcome]:
        found: dict[tuple[int, ...], ForeseenOutcome] = {}
        number = count()
        heap: list[tuple[float, int, int, tuple[int, ...]]] = [(0.0, next(number), 0, ())]
        while heap and len(found) < most:
            cost, _, node, tokens = heapq.heappop(heap)
            if node < 0:
                outcome = self._forced(tokens)
                if outcome is not None:
                    found.setdefault(tokens, outcome)
                continue
            for token, (child, chance) in self._next(node, most).items():
                price = cost - log(max(chance, LEAST))
                heapq.heappush(heap, (price, next(number), child, (*tokens, token)))
        return list(found.values())

    def _next(self, node: int, most: int) -> dict[int, tuple[int, float]]:
        """The tokens that may come after a node, with the child that holds each, or -1, and its
        chance.
        """
        children: dict[int, int] = {}
        for child in self.given.tree.children[node]:
            token = self.given.tree.token_list[child]
            if token not in children or not self.given.tree.children[children[token]]:
                children[token] = child
        draws = self.given.sampler.greedy or follows_draws(self.given.verifier)
        depth = len(self.given.tree.path_to(node)) if follows_draws(self.given.verifier) else 0
        chances = self._race(node, most + len(children) + SPARE, depth, list(children))
        if draws:
            return {token: (children.get(token, -1), chance) for token, chance in chances.items()}
        left, found = 1.0, dict[int, tuple[int, float]]()
        for token, child in children.items():  # tested in turn
            found[token] = child, left * ACCEPTED
            left *= 1.0 - ACCEPTED
        for token, chance in chances.items():
            found.setdefault(token, (-1, left * chance))
        return found

    def _race(self, node: int, most: int, ahead: int, others: Sequence[int]) -> dict[int, float]:
        """Chances of tokens to be drawn after a node, at most so many and these others."""
        try:
            row = self._row(node)
        except ValueError:  # of a drafter that is broken, which its next tree shows better
            return {}
        top = topk(row[None], min(most, len(row)))[0].tolist()
        tokens = list(dict.fromkeys([*others, *top]))
        scores = row[tokens].astype(np.float64)
        if not self.given.sampler.greedy:
            noise = self.given.rng.exponential_noise(tokens, ahead)
            scores = scores / np.maximum(noise, LEAST)
        order = (-scores).argsort(kind="stable")
        scores = scores[order]
        total = float(scores.sum())
        if not 0.0 < total < float("inf"):
            return {}
        # flat rows say little of how often their first token is the target's too
        by_rank = FIRST * (1.0 - FIRST) ** np.arange(len(scores))
        chances = 0.5 * (scores / total + by_rank)
        ranked = [tokens[place] for place in order.tolist()]
        return dict(zip(ranked, chances.tolist(), strict=True))

    def _row(self, node: int) -> Float[np.ndarray, " vocab"]:
        if self.given.sampler.greedy:
            return softmax(self.logits[node : node + 1], 1.0)[0]
        return LazyProbs(self.logits, self.given.sampler, self.given.tree, self.given.before)[node]

    def _forced(self, tokens: tuple[int, ...]) -> ForeseenOutcome | None:
        """The outcome with these tokens, and what its verdict takes of the randomness; None where
        the verifier does not get there.
        """
        rng = self.given.rng.copy()
        rows = _Certain(self.given.tree, tokens, self.logits.shape[1])
        try:
            verdict: Verdict = self.given.verifier(self.given.tree, rows, rng)
        except ValueError:  # no token is left to draw
            return None
        held = (*(self.given.tree.token_list[node] for node in verdict.path), verdict.next_token)
        return ForeseenOutcome(tokens, verdict.path, rng) if held == tokens else None


@dataclass(frozen=True, eq=False)
class _Certain:
    """A target that says just these tokens; implements ``NodeProbs``."""

    tree: DraftTree
    tokens: tuple[int, ...]
    vocab: int

    def __getitem__(self, node: int) -> Float[np.ndarray, " vocab"]:
        depth = min(len(self.tree.path_to(node)), len(self.tokens) - 1)
        row = np.zeros(self.vocab, np.float32)
        row[self.tokens[depth]] = 1.0
        return row
