"""Common parts of lossy rules."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.rng import Rng
from draftwood.sampling import LazyProbs
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import require_known
from draftwood.verifiers.verifier import NodeProbs, Verdict


def never_one_hot(probs: NodeProbs) -> NodeProbs:
    """The same order of tokens at temperature 0 too, where all probability is on one."""
    if not isinstance(probs, LazyProbs):
        return probs
    return replace(probs, sampler=probs.sampler.for_drafting(), rows={})


def rank_of(token: int, p: Float[np.ndarray, " vocab"]) -> int:
    """Count the tokens that greedy decoding takes before this one, the first of equals first."""
    return int((p > p[token]).sum()) + int((p[:token] == p[token]).sum())


def longest_path(
    tree: DraftTree,
    target_probs: NodeProbs,
    likes: Callable[[Float[np.ndarray, " vocab"]], Callable[[int], bool]],
) -> int:
    """The deepest node whose path holds nothing but tokens that a lossy rule likes.

    Of equally deep ones it is the first. Tokens that the draft cannot draw are none. Raises as
    ``require_known``.

    Args:
        likes: given the distribution after a node, says which tokens after it will do.
    """
    require_known(tree, target_probs)
    longest, level = 0, [0]
    while level:
        longest, below = level[0], list[int]()
        for node in level:
            children = [child for child in tree.children[node] if not _is_filler(tree, child)]
            will_do = likes(target_probs[node]) if children else None
            below += [c for c in children if will_do is not None and will_do(tree.token_list[c])]
        level = below
    return longest


def _is_filler(tree: DraftTree, child: int) -> bool:
    return tree.is_drawn and float(tree.row_of(child)[tree.token_list[child]]) == 0.0


class LongestLiked(ABC):
    """Keep the longest path of tokens that a rule likes, then draw from the target behind it.

    Lossy whatever the draws: the rule is exact for none.
    """

    exact_for: ClassVar[frozenset[Draw]] = frozenset()

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        longest = longest_path(tree, never_one_hot(target_probs), self.likes)
        return Verdict(tree.path_to(longest), rng.draw(target_probs[longest]))

    @abstractmethod
    def likes(self, p: Float[np.ndarray, " vocab"]) -> Callable[[int], bool]:
        """Tell which tokens will do after a node with the target's distribution ``p``."""
