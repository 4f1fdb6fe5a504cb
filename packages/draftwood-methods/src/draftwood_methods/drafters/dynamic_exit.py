"""Draft with as many of the target's layers, and as many tokens, as have paid so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.resources import Resources
from draftwood.models.model import ForwardInput, Layers
from draftwood.native.rows import topk
from draftwood.sampling import Context
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree, Draw
from draftwood_methods.exit_passes import ExitPasses, require_exits
from draftwood_methods.exits import Exits, exits_for
from draftwood_torch.tensors import as_tensor

DECAY = 0.95  # of what was seen a token ago
EXPECTED = 0.2  # share of matches before anything was seen, with the weight of so many tokens
WEIGHT = 4.0
LONGEST = 8  # draft tokens
RANKS = 8  # the target's likeliest tokens, among which layers are compared


@dataclass(frozen=True, eq=False)
class DynamicExit(Drafter):
    """An early exit whose layer, and how many tokens it drafts, follow from what it has seen.

    DEL (Entezari Zarch et al. 2025, arXiv:2504.05598). Each verified token shows which layers would
    have drafted it. With their decayed shares of matches the exit and the length are those that
    promise most tokens for each layer that is run. A length of 0 drafts nothing.

    Differs from the paper: the layers' tokens are found among the target's likeliest and the draft
    tokens, not in the whole vocabulary, which would cost several passes; the output head counts as
    so many layers; states go through a fitted map, as in ``EarlyExit``.

    Args:
        layers: exits to choose from, at least one.
        exits: their maps; without one for a layer its states go through norm and head alone.
        longest: draft tokens at most.

    Example:
        The text is 1 2 3 4 5, the model has 12 layers. Of the last tokens layer 4 would have
        drafted eight of ten, layer 2 five of ten: by the layers that are run three tokens from
        layer 4 promise most. It drafts 6 7 8. The target goes on from layer 4 with 5, 6, 7 and 8,
        says 6 after 5, 7 after 6 and 9 after 7: it keeps 6 7 and goes on with 9. Layer 4 gets two
        matches of three.
    """

    name: ClassVar[str] = "dynamic-exit"
    needs = frozenset({"layers"})
    uses = frozenset({"stored"})
    layers: tuple[int, ...]
    exits: Exits | None = None
    longest: int = LONGEST

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        count = resources.target.layers
        require_exits(resources.target, cls.name)
        exits = exits_for(resources)
        usual = (max(1, count // 4), count // 3, count // 2)
        return cls(tuple(exits.maps) if exits is not None and exits.maps else usual, exits)

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({Widths().draw})

    def start(self, request: DraftRequest) -> DraftSession:
        if not self.layers or self.longest < 1:
            raise ValueError(f"{self.name} needs exits and a length to choose from")
        for layer in self.layers:
            require_exits(request.target.model, self.name, layer)
        return _DynamicExitSession(self, request)


def best_length(share: float, drafting: float, whole: float, longest: int) -> tuple[int, float]:
    """Choose the number of tokens to draft, and return the expected tokens per layer run with it.

    Args:
        share: of draft tokens that are kept.
        drafting: layers run for each.
        whole: layers that verification runs in all.
    """
    rates = [
        sum(share**place for place in range(length + 1)) / (length * drafting + whole)
        for length in range(longest + 1)
    ]
    best = max(range(longest + 1), key=rates.__getitem__)
    return best, rates[best]


class _DynamicExitSession(DraftSession):
    def __init__(self, config: DynamicExit, request: DraftRequest) -> None:
        self.layers, self.longest = tuple(sorted(set(config.layers))), config.longest
        self.passes = ExitPasses(request, config.exits, config.longest)
        model = request.target.model
        self.depth = model.layers
        # a layer of a usual network has 12 times the square of its width
        self.head = model.vocab_size / (12 * max(1, model.hidden_size))
        self.seen = dict.fromkeys(self.layers, (WEIGHT * EXPECTED, WEIGHT))  # matches, of so many
        self.layer, self.drafted = self._choice()
        self.states: dict[int, list[Tensor]] = {}  # of the nodes drafted from, by layer
        self.begun = False

    @property
    def reads(self) -> Reads:
        if not self.begun:  # a prompt's rows of logits would cost more than they tell
            return Reads()
        least = self.layer if self.drafted else 0
        return Reads(True, tuple(layer for layer in self.layers if layer >= least))

    def propose(self, root: int, context: Context) -> DraftTree:
        self.states, self.begun = {}, True
        if not self.drafted:
            return DraftTree.of([root], [-1])
        below = tuple(layer for layer in self.layers if layer < self.layer)

        def logits(tree: DraftTree, first: int) -> np.ndarray:
            layers = Layers(stop=self.layer)
            given = ForwardInput(self.passes.session, tree, first, below, layers)
            hidden = self.passes.model.forward([given])[0].hidden
            for layer in below:
                self.states.setdefault(layer, []).append(hidden[layer])
            return self.passes.logits(self.layer, hidden[self.layer])

        return self.passes.grow(Widths((1,) * self.drafted), root, context, logits)

    def update(self, verified: VerifiedTree) -> None:
        output, path = verified.output, list(verified.path)
        if output is None or not self.begun:
            return
        likeliest = topk(verified.logits[path], min(RANKS, verified.logits.shape[-1]))
        part = np.unique([*likeliest.flatten(), *verified.tree.token_list[1:]])
        for layer in self.layers:
            states = output.hidden.get(layer)
            if states is None and layer in self.states:
                states = torch.cat(list(map(as_tensor, self.states[layer])))
            if states is not None:
                rows = path[: len(states)]
                said = part[self.passes.logits(layer, states[rows], part).argmax(-1)]
                self._learn(layer, (said == likeliest[: len(rows), 0]).tolist())
        self.layer, self.drafted = self._choice()

    def _learn(self, layer: int, matches: Sequence[bool]) -> None:
        right, count = self.seen[layer]
        for match in matches:
            right, count = DECAY * right + match, DECAY * count + 1
        self.seen[layer] = right, count

    def _choice(self) -> tuple[int, int]:
        """The exit, and how many tokens to draft."""
        whole, rates = self.depth + self.head, {}
        for layer, (right, count) in self.seen.items():
            length, rate = best_length(right / count, layer + self.head, whole, self.longest)
            rates[rate, -layer] = layer, length
        return rates[max(rates)]
