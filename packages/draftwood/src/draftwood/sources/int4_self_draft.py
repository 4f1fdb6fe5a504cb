"""Draft tokens by the target's own weights in 4 bits, where a pass over them pays."""

import ctypes
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float
from draftwood.models.model import ForwardInput, Layers, Model
from draftwood.models.verified import DraftRequest
from draftwood.sources.source import (
    AskedNode,
    Candidates,
    Evidence,
    SlowSession,
    TargetUpdate,
    likeliest,
)
from draftwood.tree import DraftTree

EVIDENCE = Evidence("shadow", 1)
USUAL_SHARE = 0.4
"""Share of a plain pass that one in 4 bits takes, before any was timed."""

FORGETTING = 0.9
INT4 = Layers(int4=True)


@dataclass(frozen=True)
class Int4SelfDraftSource:
    """The successors that the target names with its weights rounded to 4 bits.

    ML-SpecQD (Georganas et al. 2025, arXiv:2503.13565); see ``drafters.int4_self_draft``. It holds
    likely nearly what the target does, for a third of its time, so it is asked where the others
    know little.

    Args:
        pass_seconds: of the target over a single node.
        is_timed: whether questions are timed, else they count as the usual share of such a pass.
    """

    name: ClassVar[str] = "shadow"
    reads_logits: ClassVar[bool] = False
    pass_seconds: float
    is_timed: bool = True

    @classmethod
    def of(cls, target: Model, pass_seconds: float) -> "Int4SelfDraftSource":
        """Make the source of a target, and its weights in 4 bits now."""
        session = target.start()
        target.forward([ForwardInput(session, DraftTree.chain([0]), layers=INT4, keep="none")])
        session.close()
        return cls(pass_seconds)

    def start(self, request: DraftRequest) -> SlowSession:
        return _Int4SelfDraftSession(self, request)


class _Int4SelfDraftSession:
    """Questions of one request to the weights in 4 bits.

    Each question is a pass over one more node of a tree of their own, and over its ancestors that
    were not asked about. It lies behind the text in the target's cache until the target reads its
    tree.
    """

    hidden = ()
    anywhere = True

    def __init__(self, source: Int4SelfDraftSource, request: DraftRequest) -> None:
        self.source, self.session = source, request.target
        self.sampling = request.row_sampling
        self.rng = None if request.sampler.greedy else request.rng
        usual = USUAL_SHARE * source.pass_seconds
        self.seconds = (ctypes.c_double * 2)(usual, usual)
        self.answering = 0.0  # seconds
        self.tokens: list[int] = []  # of the nodes that were asked about, with their parents
        self.parents: list[int] = []

    def learn(self, news: TargetUpdate) -> None:
        """Nothing to learn: the target's cache is its cache."""

    def begin(self, root: int) -> AskedNode:
        self.tokens, self.parents = [], []
        return AskedNode(None, root)

    def advance(self, state: AskedNode, token: int) -> AskedNode:
        return AskedNode(state, token)

    def candidates(self, state: AskedNode) -> Sequence[Candidates]:
        since = time.perf_counter()
        first = len(self.tokens)
        self._append(state)
        tree = DraftTree.of(self.tokens, self.parents)
        asked = ForwardInput(self.session, tree, first, layers=INT4)
        (output,) = self.session.model.forward([asked])
        probs = self._probs(output.rows[-1:], state.depth)
        self._count(time.perf_counter() - since)
        return [(EVIDENCE, probs)]

    def _probs(self, logits: Float[np.ndarray, "1 vocab"], depth: int) -> dict[int, float]:
        """Probabilities of the likeliest tokens, and of the one that these logits would draw."""
        best, found = likeliest(logits, self.sampling)
        probs = dict(zip(best[0].tolist(), found[0].tolist(), strict=True))
        if self.rng is not None and not self.sampling.cuts:
            temperature = self.sampling.temperature
            drawn = self.rng.draw_ahead(logits, 0, temperature, depth)
            lead = float(logits[0, drawn] - logits[0, best[0, 0]]) / temperature
            probs.setdefault(drawn, float(found[0, 0]) * math.exp(lead))
        return probs

    def _append(self, state: AskedNode) -> None:
        """The node becomes the last row, behind those of its ancestors that have none."""
        if state.parent is not None and state.parent.row < 0:
            self._append(state.parent)
        state.row = len(self.tokens)
        self.tokens.append(state.token)
        self.parents.append(-1 if state.parent is None else state.parent.row)

    def spent(self) -> float:
        spent, self.answering = self.answering, 0.0
        return spent

    def _count(self, seconds: float) -> None:
        if self.source.is_timed:
            self.answering += seconds
            mean = self.seconds[0] + (1 - FORGETTING) * (seconds - self.seconds[0])
            self.seconds[:] = [mean, mean]
