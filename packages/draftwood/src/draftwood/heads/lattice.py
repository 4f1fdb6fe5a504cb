"""Prefix probabilities of frames, equal neighbours merged and blanks dropped, without listing
alignments.

An alignment takes one symbol of each frame. Collapsing it merges equal neighbours and then drops
blanks (connectionist temporal classification, Graves et al. 2006). A prefix y = y_1..y_n sums over
all alignments whose collapse begins with y. With pi_t the distribution of frame t, y^- the prefix
without its last token, and t frames read:

* new_t(y), frame t may begin y_n: b_{t-1}(y^-) + [y_n != y_{n-1}] a_{t-1}(y^-);
* a_t(y), frame t emits y_n and y is all that was emitted: pi_t(y_n) (a_{t-1}(y) + new_t(y));
* b_t(y), frame t is blank and y is all that was emitted: pi_t(blank) (a_{t-1}(y) + b_{t-1}(y)).

Then P_pre(y) = sum_t pi_t(y_n) new_t(y) and P_end(y) = a_F(y) + b_F(y), and what follows y is a
mixture of the frames: P_pre(yk) = sum_t (a + b)_{t-1}(y) pi_t(k), without a for k = y_n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float, Int, as_array

FrameRows = Any
"""Rows of symbols that frames say [frames symbols], as arrays of the host or as tensors."""


def logarithms(probs: FrameRows) -> Float[np.ndarray, "rows entries"]:
    """Minus infinity for what cannot be."""
    with np.errstate(divide="ignore"):
        return np.log(as_array(probs))


@dataclass(frozen=True)
class Prefix:
    """Prefix of the text that frames emit.

    Attributes:
        token: the last of it; -1 if empty.
        chance: probability of all texts with this prefix.
        ends: probability of this text, ended.
        weights: of each frame in what follows.
        repeats: the same for one more ``token`` like the last.
    """

    token: int
    chance: float
    ends: float
    weights: tuple[float, ...]
    repeats: tuple[float, ...]


@runtime_checkable
class Frames(Protocol):
    """Distribution of texts, given by the probabilities of prefixes.

    Attributes:
        probs: of each symbol in each frame.
        has_blank: whether the last symbol is a blank.
        merges: whether equal neighbours merge and blanks are dropped.
    """

    probs: Float[np.ndarray, "frames symbols"]
    has_blank: bool
    merges: bool

    def start(self) -> Prefix:
        """The empty prefix."""
        ...

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        """One token longer."""
        ...

    def rows(self, prefixes: Sequence[Prefix]) -> Float[np.ndarray, "prefixes vocab"]:
        """Probability of each prefix extended by each token."""
        ...


class Lattice:
    """Frames with a blank, read through the collapse.

    Args:
        probs: of each symbol in each frame, in any float type; the blank is the last symbol.
    """

    has_blank: bool = True
    merges: bool = True

    def __init__(self, probs: FrameRows) -> None:
        self.probs = as_array(probs)
        self._tokens = self.probs[:, :-1]
        self._blank: list[float] = self.probs[:, -1].tolist()

    def start(self) -> Prefix:
        """The empty prefix: all frames so far were blank."""
        silent = [1.0]
        for chance in self._blank:
            silent.append(silent[-1] * chance)
        before = tuple(silent[:-1])
        return Prefix(-1, 1.0, silent[-1], before, before)

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        """One token longer, in one pass over the frames."""
        begins = prefix.repeats if token == prefix.token else prefix.weights
        said = silent = chance = 0.0
        weights, repeats = [], []
        says: list[float] = self._tokens[:, token].tolist()
        for begin, say, blank in zip(begins, says, self._blank, strict=True):
            weights.append(said + silent)
            repeats.append(silent)
            chance += say * begin
            said, silent = say * (said + begin), blank * (said + silent)
        return Prefix(token, chance, said + silent, tuple(weights), tuple(repeats))

    def rows(self, prefixes: Sequence[Prefix]) -> Float[np.ndarray, "prefixes vocab"]:
        """One product with all frames, and a correction for a repeat of the last token."""
        kind = self._tokens.dtype
        rows = np.array([prefix.weights for prefix in prefixes], kind) @ self._tokens
        for row, prefix in zip(rows, prefixes, strict=True):
            if prefix.token >= 0:
                row[prefix.token] = np.array(prefix.repeats, kind) @ self._tokens[:, prefix.token]
        return rows


class Unmerged:
    """Frames without a collapse: frame d drafts the token at depth d, as Medusa's heads do.

    A blank, where there is one, ends the text.

    Args:
        probs: of each symbol in each frame.
        has_blank: whether the last symbol is one.
    """

    merges: bool = False

    def __init__(self, probs: FrameRows, has_blank: bool) -> None:
        self.probs, self.has_blank = as_array(probs), has_blank
        self._tokens = self.probs[:, :-1] if has_blank else self.probs
        self._blank = self.probs[:, -1].tolist() if has_blank else [0.0] * len(probs)
        self._blank.append(1.0)

    def start(self) -> Prefix:
        """The empty prefix, all of whose weight is on the first frame."""
        return self._prefix(-1, 1.0, 0)

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        """One frame further."""
        depth = next((frame for frame, weight in enumerate(prefix.weights) if weight), -1)
        if depth < 0:
            return self._prefix(token, 0.0, len(self._tokens))
        return self._prefix(token, prefix.chance * float(self._tokens[depth, token]), depth + 1)

    def rows(self, prefixes: Sequence[Prefix]) -> Float[np.ndarray, "prefixes vocab"]:
        """Each prefix's probability times the frame of its depth."""
        weights = np.array([prefix.weights for prefix in prefixes], self._tokens.dtype)
        return weights @ self._tokens

    def _prefix(self, token: int, chance: float, depth: int) -> Prefix:
        weights = tuple(chance * (frame == depth) for frame in range(len(self._tokens)))
        return Prefix(token, chance, chance * self._blank[depth], weights, weights)


@dataclass(frozen=True, eq=False)
class Pairs:
    """A pairwise term of each token after each other, as products of two vectors.

    Attributes:
        before: vector of the token that is before.
        after: vector of the token whose logit it adds to.
    """

    before: Float[np.ndarray, "vocab rank"]
    after: Float[np.ndarray, "vocab rank"]

    @classmethod
    def of(
        cls,
        projection: Float[np.ndarray, "rank dim"],
        embedded: Float[np.ndarray, "vocab dim"],
        after: Float[np.ndarray, "rank vocab"],
    ) -> "Pairs":
        """Compute the terms from a head's weights.

        Args:
            projection: of the embedding of the token before.
            embedded: the draft vocabulary's embedding.
            after: what the output head says of each of the term's directions.
        """
        squares = np.square(embedded).mean(-1, keepdims=True)
        normed = embedded / np.sqrt(squares + np.finfo(np.float32).eps)
        return cls(normed @ projection.T, after.T.copy())

    def between(
        self, before: Int[np.ndarray, " one"], after: Int[np.ndarray, " other"]
    ) -> Float[np.ndarray, "one other"]:
        """Terms of some tokens after some others."""
        return self.before[before] @ self.after[after].T


MOST_TERM = 60.0
"""Largest term of a pair: its exponential is a number."""


class Chain:
    """Frames without a blank, of which each knows the token of the frame before it.

    Only the ``candidates`` likeliest tokens of a frame can be drafted there, as in DFlash-2's
    selector; among them the pairwise term decides as well. So what follows a prefix depends on its
    length and its last token alone, and is known exactly: rejection sampling from it keeps the
    target's distribution.

    The other tokens keep the chance that the frame gives them, without a term. Otherwise a frame
    that is sure of nothing would seem as sure as the first, and trees would grow deep in the place
    of wide. With a term of zero the tree is that of the frames alone.

    Args:
        log_probs: of the draft vocabulary in each frame.
        pairs: the term of neighbouring tokens.
        candidates: tokens of a frame.
    """

    has_blank: bool = False
    merges: bool = False

    def __init__(self, log_probs: FrameRows, pairs: Pairs, candidates: int = 16) -> None:
        self.probs = np.exp(as_array(log_probs))
        self._vocab = self.probs.shape[-1]
        self._tokens = _likeliest(self.probs, min(candidates, self._vocab))
        known = np.take_along_axis(self.probs, self._tokens, -1)
        others = (1.0 - known.sum(-1, keepdims=True)).clip(min=0.0)
        self._laws = [known[:1]]  # of frame f: [candidates before, candidates]
        for frame in range(1, len(known)):
            terms = pairs.between(self._tokens[frame - 1], self._tokens[frame])
            raised = known[frame] * np.exp(terms.astype(known.dtype).clip(max=MOST_TERM))
            self._laws.append(raised / (raised.sum(-1, keepdims=True) + others[frame]))
        self._places = [
            {token: place for place, token in enumerate(row)} for row in self._tokens.tolist()
        ]

    def start(self) -> Prefix:
        """The empty prefix."""
        return self._prefix(-1, 1.0, 0)

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        """One frame further."""
        depth = self._depth(prefix)
        if depth < 0 or token not in self._places[depth]:
            return self._prefix(token, 0.0, len(self._laws))
        says = float(self._law(prefix, depth)[self._places[depth][token]])
        return self._prefix(token, prefix.chance * says, depth + 1)

    def rows(self, prefixes: Sequence[Prefix]) -> Float[np.ndarray, "prefixes vocab"]:
        """Probability of each prefix extended by each token."""
        found = np.zeros((len(prefixes), self._vocab), self.probs.dtype)
        for row, prefix in zip(found, prefixes, strict=True):
            depth = self._depth(prefix)
            if depth >= 0:
                row[self._tokens[depth]] = prefix.chance * self._law(prefix, depth)
        return found

    def likeliest(self, nodes: int, max_draft_len: int) -> tuple[list[int], list[int]]:
        """Find the most probable prefixes: their last tokens, and their parents; 0 is the root."""
        laws, known = [law.tolist() for law in self._laws], self._tokens.tolist()
        tokens, parents = list[int](), list[int]()
        waiting = [(-chance, 0, place, 0) for place, chance in enumerate(laws[0][0])]
        heapify(waiting)
        while waiting and len(tokens) < nodes and max_draft_len > 0:
            chance, depth, place, parent = heappop(waiting)
            tokens.append(known[depth][place])
            parents.append(parent)
            if depth + 1 < min(len(laws), max_draft_len):
                for after, says in enumerate(laws[depth + 1][place]):
                    heappush(waiting, (chance * says, depth + 1, after, len(tokens)))
        return tokens, parents

    def _law(self, prefix: Prefix, depth: int) -> Float[np.ndarray, " candidates"]:
        before = self._places[depth - 1][prefix.token] if depth else 0
        return self._laws[depth][before]

    def _depth(self, prefix: Prefix) -> int:
        return next((frame for frame, weight in enumerate(prefix.weights) if weight), -1)

    def _prefix(self, token: int, chance: float, depth: int) -> Prefix:
        weights = tuple(chance * (frame == depth) for frame in range(len(self._laws)))
        ends = chance * (depth == len(self._laws))
        return Prefix(token, chance, ends, weights, weights)


def _likeliest(probs: Float[np.ndarray, "rows vocab"], count: int) -> Int[np.ndarray, "rows count"]:
    """Places of the likeliest of each row, best first."""
    some = np.argpartition(-probs, count - 1, axis=-1)[:, :count]
    order = np.argsort(-np.take_along_axis(probs, some, -1), axis=-1, kind="stable")
    return np.take_along_axis(some, order, -1)
