"""Draft with what a head in PyTorch holds likely, where asking it pays."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.kinds import require_kind
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.models.verified import DraftRequest
from draftwood.optional import backend
from draftwood.sources.asked import AskedNode, AskedSession
from draftwood.sources.source import Evidence, SlowSession, TargetUpdate
from draftwood.sources.trained_head import DEPTHS, NAME
from draftwood.tree import DraftTree

USUAL_SECONDS = (4e-3, 3e-3)
"""Time of asking at the root and deeper, before any was timed."""


@dataclass(frozen=True, eq=False)
class HeadInPytorchSource:
    """The successors that a head drafts from the target's states, for targets in PyTorch.

    What ``TrainedHeadSource`` is for heads that the library runs: EAGLE heads, and layers for
    multi-token prediction that come with a target.

    Args:
        text: begins a ``HeadText`` of drafters/head_drafts.py.
        layers: of the target, whose inputs the head reads.
        tokens: that it drafts, as ids of the target's; None for all.
        is_timed: whether questions are timed, else the usual seconds stay.
    """

    name: ClassVar[str] = "head-in-pytorch"
    reads_logits: ClassVar[bool] = False
    text: Callable[[], Any]
    layers: tuple[int, ...]
    tokens: Int[np.ndarray, " draft_vocab"] | None = None
    is_timed: bool = True

    @classmethod
    def of(cls, trained: TrainedHead, target: Model) -> "HeadInPytorchSource":
        """Make the source of an EAGLE head.

        Raises:
            ValueError: for a head of another kind, and a target that lacks what it reads.
            ImportError: without PyTorch.
        """
        config = require_kind(trained.config, EagleConfig, "auto")
        require_ability(target, "embeddings_and_head", "auto with this head")
        runner = backend("auto with this head and model")
        placed, embeddings = runner.placed(trained, target), target.embeddings_and_head
        text = partial(runner.eagle_text, placed.network, embeddings, placed.logits)
        return cls(text, config.reads, trained.draft_tokens)

    def start(self, request: DraftRequest) -> SlowSession:
        return _HeadInPytorchSession(self, request)


class _HeadInPytorchSession(AskedSession):
    """Questions of one request to a head; each is a row of it below rows that were asked about."""

    def __init__(self, source: HeadInPytorchSource, request: DraftRequest) -> None:
        super().__init__(request, USUAL_SECONDS, source.is_timed)
        self.source, self.text = source, source.text()
        self.hidden = tuple(dict.fromkeys(source.layers))
        self.vocab_size = request.target.model.vocab_size

    def learn(self, news: TargetUpdate) -> None:
        accepted = news.accepted
        self.text.drop()
        hidden = {} if accepted.output is None else accepted.output.hidden
        self.text.take(accepted.tokens, hidden, accepted.path)

    def answer(self, state: AskedNode) -> Float[np.ndarray, "1 vocab"]:
        tree = DraftTree.of(self.tokens, self.parents)
        logits, tokens = as_array(self.text.level(tree, len(tree) - 1)), self.source.tokens
        if tokens is None:
            return logits
        wide = np.full((1, self.vocab_size), -np.inf, np.float32)
        wide[:, tokens] = logits
        return wide

    def evidence(self, state: AskedNode) -> Evidence:
        return Evidence(NAME, min(state.depth, DEPTHS - 1) + 1)
