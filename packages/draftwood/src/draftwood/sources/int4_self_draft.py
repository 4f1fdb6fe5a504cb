"""Draft tokens by the target's own weights in 4 bits, where a pass over them pays."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float
from draftwood.models.model import ForwardInput, Layers, Model
from draftwood.models.verified import DraftRequest
from draftwood.sources.asked import AskedNode, AskedSession
from draftwood.sources.source import Evidence, SlowSession, TargetUpdate
from draftwood.tree import DraftTree

EVIDENCE = Evidence("shadow", 1)
USUAL_SHARE = 0.4
"""Share of a plain pass that one in 4 bits takes, before any was timed."""

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


class _Int4SelfDraftSession(AskedSession):
    """Questions of one request to the weights in 4 bits.

    Each question is a pass over one more node of a tree of their own, and over its ancestors that
    were not asked about. It lies behind the text in the target's cache until the target reads its
    tree.
    """

    anywhere = alike = True

    def __init__(self, source: Int4SelfDraftSource, request: DraftRequest) -> None:
        usual = USUAL_SHARE * source.pass_seconds
        super().__init__(request, (usual, usual), source.is_timed)
        self.session = request.target
        self.run = 0  # rows that lie in the cache

    def learn(self, news: TargetUpdate) -> None:
        """Nothing to learn: the target's cache is its cache."""

    def begin(self, root: int) -> AskedNode:
        self.run = 0
        return super().begin(root)

    def answer(self, state: AskedNode) -> Float[np.ndarray, "1 vocab"]:
        tree = DraftTree.of(self.tokens, self.parents)
        asked = ForwardInput(self.session, tree, self.run, layers=INT4)
        (output,) = self.session.model.forward([asked])
        self.run = len(self.tokens)
        return output.rows[-1:]

    def evidence(self, state: AskedNode) -> Evidence:
        return EVIDENCE
