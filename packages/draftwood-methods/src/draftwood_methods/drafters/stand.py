"""Draft by drawing from what the target held likely after the same few tokens."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.shapes import Shape
from draftwood.sources.source import TargetUpdate
from draftwood.tree import DraftTree, Draw
from draftwood.validation import positive
from draftwood_methods.n_grams import NGramTables, Tail


@dataclass(frozen=True)
class Stand(Drafter):
    """Draw children from tables of the target's likeliest successors of the newest tokens.

    Stochastic adaptive n-gram drafting (Song et al. 2025, arXiv:2506.04708). The tables hold
    probabilities. The children of a node are drawn without replacement from the row of the longest
    context known. They have the distribution of the paper's Gumbel-Top-k, so rejection sampling
    keeps the target's distribution. At temperature 0 the likeliest tokens take the place of drawn
    ones.

    Differs from the paper: the tree is not learnt from data; the i-th child drawn of a node gets
    1/2**i of what the node may spend, so that early draws have the large subtrees. The prompt fills
    the tables too. Rows hold 8 tokens.

    Args:
        nodes: most draft tokens.
        order: most tokens of context.
        fresh: weight of the newest forward pass where a context was seen before.
        width: most children of a node.
        max_contexts: contexts kept of each length.

    Example:
        The passes over 1 2 3 1 put rows into the tables: 3 after 2, 4 after 3. Of 4 none is known
        yet.

        >>> one_step(Stand(nodes=3, width=1), writing([1, 2, 3, 4, 5]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 4]], accepted=[3, 4], then=5)
    """

    name: ClassVar[str] = "stand"
    nodes: int = 16
    order: int = 4
    fresh: float = 0.6
    width: int = 4
    max_contexts: int = 50_000

    def __post_init__(self) -> None:
        positive(
            "nodes, order, width and max_contexts",
            [self.nodes, self.order, self.width, self.max_contexts],
        )
        if self.width > TargetUpdate.ranks:
            raise ValueError(
                f"width must be at most {TargetUpdate.ranks}, the tokens kept of each row, got"
                f" {self.width}"
            )

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"distinct"})

    def start(self, request: DraftRequest) -> DraftSession:
        return _StandSession(self, request)


class _StandSession(DraftSession):
    def __init__(self, config: Stand, request: DraftRequest) -> None:
        self.config, self.rng = config, request.rng
        self.vocab = request.target.model.vocab_size
        self.sampling = request.row_sampling
        self.masked = request.mask
        self.tables = NGramTables(config.order, config.fresh, config.max_contexts)
        self.tail: Tail = ()

    @property
    def reads(self) -> Reads:
        return Reads(logits=True)

    def propose(self, root: int, context: Context) -> DraftTree:
        grown = _Drawn([root], [-1], [0], [self._longer(self.tail, root)], [self.config.nodes])
        node = 0
        while (
            node < len(grown.tokens) and grown.depths[node] < context.max_draft_len
        ):  # depths never fall
            self._branch(grown, node, context)
            node += 1
        probs = np.zeros((max(grown.rows, default=-1) + 1, self.vocab), np.float32)
        for node, row in grown.rows.items():
            probs[node, list(row)] = list(row.values())
        return DraftTree(np.array(grown.tokens), np.array(grown.parents), probs, "distinct")

    def _branch(self, grown: "_Drawn", node: int, context: Context) -> None:
        """Draw the children of a node.

        How many depends on counts and on the path to the node, never on a drawn token's identity.
        """
        share = grown.shares[node]
        known = self.tables.rows(grown.tails[node])
        if share == 0 or not known:
            return
        row = normalised(self._permitted(known[0][1], grown, node, context))
        shares = halves(share, min(self.config.width, len(row)))
        if not shares:
            return
        tokens, weights = list(row), np.array([list(row.values())], np.float32)
        grown.rows[node] = row
        for place, given in zip(draw(weights, len(shares), self.rng), shares, strict=True):
            grown.tokens.append(tokens[place])
            grown.parents.append(node)
            grown.depths.append(grown.depths[node] + 1)
            grown.tails.append(self._longer(grown.tails[node], tokens[place]))
            grown.shares.append(given - 1)

    def _permitted(
        self, row: dict[int, float], grown: "_Drawn", node: int, context: Context
    ) -> dict[int, float]:
        """Restrict a row to the tokens that a constraint allows; nothing else may be drawn from."""
        if self.masked is None:
            return row
        mask = self.masked.allowed(context.extended(grown.path(node)))
        return row if mask is None else {token: row[token] for token in row if mask[token]}

    def update(self, verified: VerifiedTree) -> None:
        news, tails = TargetUpdate(verified, self.sampling), []
        for token, parent, row in zip(
            verified.tree.token_list, verified.tree.parent_list, news.rows, strict=True
        ):
            tails.append(self._longer(self.tail if parent < 0 else tails[parent], token))
            self.tables.learn(tails[-1], row)
        self.tail = tails[verified.path[-1]]

    def _longer(self, tail: Tail, token: int) -> Tail:
        return (*tail, token)[-self.config.order :]


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A tree that still grows.

    For each node it holds token, parent, depth, context and the draft tokens that the node may
    spend below itself.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    tails: list[Tail]
    shares: list[int]
    rows: dict[int, dict[int, float]] = field(default_factory=dict)

    def path(self, node: int) -> list[int]:
        """Tokens from the root to a node."""
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]


def draw(weights: Float[np.ndarray, "1 tokens"], count: int, rng: Rng) -> list[int]:
    """Places of so many tokens, drawn without replacement, in drawing order."""
    return rng.draw_distinct(weights, count)[0].tolist()


def normalised(row: dict[int, float]) -> dict[int, float]:
    """The tokens of a row that can be drawn, with probabilities that sum to 1."""
    possible = {token: probability for token, probability in row.items() if probability > 0.0}
    total = sum(possible.values())
    return {token: probability / total for token, probability in possible.items()}


def halves(share: int, limit: int) -> list[int]:
    """Split ``share`` nodes among at most ``limit`` children, each of which counts itself.

    The first gets half, the next half of the rest, and so on; the last that the limit allows gets
    all that is left.
    """
    given: list[int] = []
    while share > 0 and len(given) < limit:
        given.append(share if len(given) + 1 == limit else (share + 1) // 2)
        share -= given[-1]
    return given
