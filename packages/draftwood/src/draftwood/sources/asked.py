"""Questions to what computes a row for each node, and takes its time for that."""

import ctypes
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from draftwood.arrays import Float
from draftwood.models.verified import DraftRequest
from draftwood.sources.source import Candidates, Evidence, TargetUpdate, likeliest

FORGETTING = 0.9


class AskedNode:
    """A text that ends in a draft token, as sources know it that compute a row for each question.

    Attributes:
        row: of this node, once it was asked about; -1 before.
    """

    __slots__ = ("depth", "parent", "row", "token")

    def __init__(self, parent: "AskedNode | None", token: int) -> None:
        self.parent, self.token = parent, token
        self.depth = 0 if parent is None else parent.depth + 1
        self.row = -1


class AskedSession(ABC):
    """Base of a slow source's questions of one request; a ``SlowSession``.

    Args:
        usual: seconds of asking at the root and deeper, before any question was timed.
        is_timed: whether questions are timed, else the seconds stay.

    Attributes:
        anywhere: whether it may be asked below nodes at which it was not.
        alike: whether a question at the root takes as long as one deeper.
        tokens, parents: of the nodes that were asked about, and rows for; -1 for the root's parent.
    """

    hidden: tuple[int, ...] = ()
    anywhere: bool = False
    alike: bool = False

    def __init__(
        self, request: DraftRequest, usual: tuple[float, float], is_timed: bool = True
    ) -> None:
        self.sampling = request.row_sampling
        self.rng = None if request.sampler.greedy else request.rng
        self.is_timed = is_timed
        self.seconds = (ctypes.c_double * 2)(*usual)
        self.answering = 0.0  # seconds
        self.tokens: list[int] = []
        self.parents: list[int] = []

    @abstractmethod
    def learn(self, news: TargetUpdate) -> None:
        """Take in what a forward pass of the target said."""

    @abstractmethod
    def answer(self, state: AskedNode) -> Float[np.ndarray, "1 vocab"]:
        """Logits after the newest of ``tokens``, in the target's vocabulary."""

    @abstractmethod
    def evidence(self, state: AskedNode) -> Evidence:
        """The kind of evidence that an answer at a node is."""

    def begin(self, root: int) -> AskedNode:
        self.tokens, self.parents = [], []
        return AskedNode(None, root)

    def advance(self, state: AskedNode, token: int) -> AskedNode:
        return AskedNode(state, token)

    def candidates(self, state: AskedNode) -> Sequence[Candidates]:
        since = time.perf_counter()
        self._append(state)
        logits = self.answer(state)
        self._count(time.perf_counter() - since, state)
        if np.isnan(logits.max()):  # of a broken head, or of broken states
            return []
        return [(self.evidence(state), self._probs(logits, state.depth))]

    def spent(self) -> float:
        spent, self.answering = self.answering, 0.0
        return spent

    def _append(self, state: AskedNode) -> None:
        """The node becomes the last row, behind those of its ancestors that have none."""
        if state.parent is not None and state.parent.row < 0:
            self._append(state.parent)
        state.row = len(self.tokens)
        self.tokens.append(state.token)
        self.parents.append(-1 if state.parent is None else state.parent.row)

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

    def _count(self, seconds: float, state: AskedNode) -> None:
        if not self.is_timed:
            return
        self.answering += seconds
        for place in (0, 1) if self.alike else (int(state.depth > 0),):
            self.seconds[place] += (1 - FORGETTING) * (seconds - self.seconds[place])
