"""Cut another drafter's tree in the midst of its verification."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from draftwood.costs.budget import Budget
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.resources import Resources
from draftwood.models.model import Layers, Model
from draftwood.models.session import PooledSession
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Paths, Shape
from draftwood.tree import DraftTree, Draw
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_methods.exit_passes import ExitPasses, require_exits
from draftwood_methods.exits import Exits, exit_layers, exits_for

MOST_NODES = 256  # whose costs are known; more are never kept
RANKS = 8  # places among siblings that are told apart
DECAY = 0.98  # of what was seen a token ago
EXPECTED, WEIGHT = 0.6, 1.0  # trust before anything was seen, with the weight of so many tokens


@dataclass(frozen=True, eq=False)
class Pruned(Drafter):
    """A tree of which the target's pass drops what its first layers find unlikely.

    ProPD (Zhong et al. 2024, arXiv:2402.13485). The pass over the whole tree stops before a layer.
    What the model would say there about each node's children decides which of them go on; a node
    leaves with all nodes below it. The pass resumes with the others, whose logits are those of a
    tree that never held more.

    A node's chance is its parent's times its own share among all tokens of the tree, corrected by
    how far shares of its place among siblings came true lately. Nodes stay in falling order of
    their chances, as many as give most tokens per second: the layers below are paid for, those
    above cost what the curve says of so many nodes.

    What stays depends on the target's own states, so the tree is ``chosen`` however its siblings
    were drawn, and needs a verifier that is exact for that.

    Differs from the paper: states go through a fitted map instead of a trained head, and only the
    tree's own tokens are scored; a price takes the place of a fixed rank among the head's likeliest
    tokens. In a batch each text runs the first layers by itself.

    Args:
        drafter: whose trees are cut.
        layer: to stop before.
        exits: the maps; without one for the layer its states go through norm and head alone.
        budget: what a pass of the target costs by nodes.
        least: chance below which a node leaves; None leaves that to the price.

    Raises:
        ValueError: for a chance that is none.

    Example:
        The text is 1 2 3 4 5, and the tree holds 6, 8 and 9 below 5, and 7 below 6. The first
        layers run all of it. What the output head says of their states gives 6 a chance of 0.7, its
        child 7 one of 0.5, 8 one of 0.2 and 9 one of 0.1. At this price two draft tokens pay: 8 and
        9 leave, and the other layers go on with 5, 6 and 7. The target says 6, 7 and 0: it keeps 6
        7 and goes on with 0.
    """

    name: ClassVar[str] = "pruned"
    needs = frozenset({"layers"})
    uses = frozenset({"shape", "stored", "curve"})
    shape_type: ClassVar[type] = Paths
    drafter: Drafter
    layer: int
    exits: Exits | None = None
    budget: Budget = field(default_factory=Budget)
    least: float | None = None

    def __post_init__(self) -> None:
        if self.least is not None and not 0.0 <= self.least <= 1.0:
            raise ValueError(f"least is a chance between 0 and 1, got {self.least}")

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        target = resources.target
        require_exits(target, cls.name)
        budget = Budget.of(resources.curve)
        layer = exit_layers(target.layers)[-1]
        return cls(TokenRecycling.build(resources), layer, exits_for(resources), budget)

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"chosen"})

    @property
    def draws(self) -> frozenset[Draw]:
        labels: set[Draw] = {_label(draw) for draw in self.drafter.draws}
        return frozenset(labels)

    @property
    def most_nodes(self) -> int:
        return self.drafter.most_nodes

    def start(self, request: DraftRequest) -> DraftSession:
        require_exits(request.target.model, self.name, self.layer)
        return _PrunedSession(self, request)

    def share(self, model: Model) -> float:
        """Share of a pass's work that is done before the layer."""
        # a layer of a usual network has 12 times the square of its width
        head = model.vocab_size / (12 * max(1, model.hidden_size))
        return self.layer / (model.layers + head)

    def kept(
        self, tree: DraftTree, chances: Sequence[float], share: float, now: Context
    ) -> list[int]:
        """The nodes that go on, the root first.

        Args:
            chances: that each is accepted, falling from parent to child.
            share: of the work that is done.
            now: before the root, and what else the pass runs.
        """
        if self.least is not None:
            return [node for node, chance in enumerate(chances) if not node or chance >= self.least]
        order = sorted(range(1, len(tree)), key=lambda node: (-chances[node], node))
        alone = self._costs.now().with_context(len(now.tokens))
        spent = share * alone.costs[min(len(tree) - 1, MOST_NODES)]
        tokens, size, best = 1.0 + now.shared.tokens, 0, 0.0
        costs = alone.beside(now.shared.rows).costs
        for count, cost in enumerate(costs[: len(tree)]):
            tokens += chances[order[count - 1]] if count else 0.0
            rate = tokens / (spent + (1.0 - share) * cost)
            if rate > best:
                size, best = count, rate
        return [0, *sorted(order[:size])]

    def cut(self, tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, in growing order, labelled as what it now is."""
        plain = replace(tree, probs=None, chances=None, drawn_from=None, draw=_label(tree.draw))
        return plain if len(nodes) == len(tree) else plain.keep(nodes)

    @cached_property
    def _costs(self) -> Budget:
        return replace(self.budget, max_draft_tokens=MOST_NODES)


def _label(draw: Draw) -> Draw:
    """Rule of siblings once the target has chosen among them."""
    return "coupled" if draw == "coupled" else "chosen"


class _PrunedSession(DraftSession):
    def __init__(self, config: Pruned, request: DraftRequest) -> None:
        self.config, self.inner = config, config.drafter.start(request)
        self.passes = ExitPasses(request, config.exits, 0)
        self.share = config.share(request.target.model)
        # by place among siblings: successors that were drafted there, and shares
        self.seen = [(WEIGHT * EXPECTED, WEIGHT)] * RANKS
        # the tree that was proposed last, before it was cut: tokens before its root, shares
        self.newest: tuple[DraftTree, int, list[float]] | None = None

    @property
    def reads(self) -> Reads:
        return self.inner.reads

    @property
    def needs_prompt(self) -> bool:
        return self.inner.needs_prompt

    def follow(self, first: DraftSession) -> None:
        assert isinstance(first, _PrunedSession)
        self.inner.follow(first.inner)

    def propose(self, root: int, context: Context) -> DraftTree:
        self._learn(root, context)
        tree = self.inner.propose(root, context)
        tree = tree.truncated(context.max_draft_len) if len(tree) > context.max_draft_len else tree
        if len(tree) == 1:
            return self.config.cut(tree, [0])
        shares = self._shares(tree)
        self.newest = tree, len(context.tokens), shares
        chances = self._chances(tree, shares)
        nodes = self.config.kept(tree, chances, self.share, context)
        session = self.passes.session
        assert isinstance(session, PooledSession)  # as all that can resume
        session.go_on_with(nodes)
        return self.config.cut(tree, nodes)

    def _shares(self, tree: DraftTree) -> list[float]:
        """Probability of each node, among all tokens of the tree, as successor of its parent."""
        layer, tokens = self.config.layer, tree.tokens[1:]
        states = self.passes.run(tree, 0, Layers(stop=layer)).hidden[layer]
        part, column = np.unique(tokens, return_inverse=True)
        parents, row = np.unique(tree.parents[1:], return_inverse=True)
        logits = self.passes.logits(layer, states[parents.tolist()], part)
        return [1.0, *Sampling(1.0).probs(logits)[row, column].tolist()]

    def _chances(self, tree: DraftTree, shares: Sequence[float]) -> list[float]:
        """Acceptance probability of each node."""
        trust = [right / max(claimed, 1e-6) for right, claimed in self.seen]
        chances = [1.0] * len(tree)
        for node, children in enumerate(tree.children):
            for place, child in enumerate(children):
                own = min(1.0, trust[min(place, RANKS - 1)] * shares[child])
                chances[child] = chances[node] * own
        return chances

    def _learn(self, root: int, context: Context) -> None:
        """Record how far shares came true along the text, also of nodes that left."""
        if self.newest is None:
            return
        (tree, length, shares), self.newest, node = self.newest, None, 0
        for token in [*context.tokens[length + 1 :], root]:
            next_node = None
            for place, child in enumerate(tree.children[node]):
                is_next = tree.token_list[child] == token
                next_node = child if is_next else next_node
                right, claimed = self.seen[min(place, RANKS - 1)]
                self.seen[min(place, RANKS - 1)] = (
                    DECAY * right + is_next,
                    DECAY * claimed + shares[child],
                )
            if next_node is None:
                return
            node = next_node

    def update(self, verified: VerifiedTree) -> None:
        self.inner.update(verified)

    def close(self) -> None:
        self.inner.close()
