"""Frames that know their neighbour: a first-order chain over the likeliest tokens of each."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.heads.lattice import Prefix


class PairwiseTerm(nn.Module):
    """Term of low rank that a token adds to the logits of the frame after it.

    Frames side by side are independent of each other. DSpark adds such a Markov term and gains 16
    to 18 % of accepted tokens. It begins as zero.

    Args:
        vocab: tokens of the draft vocabulary.
        rank: entries of a token's vector.
    """

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.before_embedding = nn.Parameter(torch.randn(vocab, rank) * rank**-0.5)
        self.after_embedding = nn.Parameter(torch.zeros(vocab, rank))

    def forward(self, before: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch vocab"]:
        """Terms of all tokens after these."""
        return self.before_embedding[before] @ self.after_embedding.T

    def between(
        self, before: Int[Tensor, " one"], after: Int[Tensor, " other"]
    ) -> Float[Tensor, "one other"]:
        """Terms of some tokens after some others."""
        return self.before_embedding[before] @ self.after_embedding[after].T


class Chain:
    """Frames without a blank, of which each knows the token of the frame before it.

    Only the ``candidates`` likeliest tokens of a frame can be drafted there, as in DFlash-2's
    selector; among them the pairwise term decides as well. So the distribution after a prefix
    depends on its length and its last token alone, sums to 1 over the candidates, and is known
    exactly: rejection sampling from it keeps the target's distribution.

    Args:
        logits: of the draft vocabulary in each frame.
        term: of neighbouring tokens.
        candidates: tokens of a frame.
    """

    has_blank: bool = False
    merges: bool = False

    @torch.no_grad()
    def __init__(
        self, logits: Float[Tensor, "frames vocab"], term: PairwiseTerm, candidates: int = 16
    ) -> None:
        self.probs = logits.softmax(-1)
        best = logits.topk(min(candidates, logits.shape[-1]), dim=-1)
        self._tokens, self._vocab = best.indices, logits.shape[-1]
        first = best.values[0].softmax(-1)[None]
        between = [
            term.between(self._tokens[frame - 1], self._tokens[frame]).float()
            for frame in range(1, len(logits))
        ]
        later = [(best.values[frame + 1] + each).softmax(-1) for frame, each in enumerate(between)]
        self._laws = [first, *later]  # of frame f: [candidates before, candidates]
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

    @torch.no_grad()
    def rows(self, prefixes: Sequence[Prefix]) -> Float[Tensor, "prefixes vocab"]:
        """Probability of each prefix extended by each token."""
        found = self._laws[0].new_zeros(len(prefixes), self._vocab)
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

    def _law(self, prefix: Prefix, depth: int) -> Float[Tensor, " candidates"]:
        before = self._places[depth - 1][prefix.token] if depth else 0
        return self._laws[depth][before]

    def _depth(self, prefix: Prefix) -> int:
        return next((frame for frame, weight in enumerate(prefix.weights) if weight), -1)

    def _prefix(self, token: int, chance: float, depth: int) -> Prefix:
        weights = tuple(chance * (frame == depth) for frame in range(len(self._laws)))
        ends = chance * (depth == len(self._laws))
        return Prefix(token, chance, ends, weights, weights)
