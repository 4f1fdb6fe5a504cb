"""Draft with an LM that predicts how likely its own tokens are accepted."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.heads.lm import LmConfig
from draftwood_methods.gated_drafts import GatedDrafter, GatedDrafts
from draftwood_torch.heads.texts import LmText


@dataclass(frozen=True, eq=False)
class SpecDecPlusPlus(GatedDrafter):
    """A chain of a draft LM that stops where a trained head holds a rejection likely.

    SpecDec++ (Huang et al. 2024, arXiv:2405.19715). The head reads the LM's state behind a draft
    token, and predicts the chance c that the target accepts this token. No further token is drawn
    once the chance of a rejection so far, 1 - c1 c2 ..., exceeds ``threshold``: the rule that is
    optimal for the paper's decision process. Whether a token has a successor depends on the path
    alone, so rejection keeps the target's distribution.

    Differs from the paper: the draft model is an LM that was trained for the target, and the rule
    holds from the first token on, not from the second.

    Args:
        trained: draft LM with an acceptance head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: a ``Gated`` chain; its length is the most draft tokens.
        threshold: largest chance of a rejection with which it drafts on.

    Raises:
        ValueError: where the drafter is of another kind, has no acceptance head or does not fit
            the target, and for a threshold that is no chance.

    Example:
        The text is 1 2 3 4 5. The LM says 6, reads it, and the head gives 6 a chance of 0.9: the
        LM says 7. To 7 it gives 0.3, and 1 - 0.9 x 0.3 exceeds a threshold of 0.7, so nothing is
        drawn behind 7. The target says 6 after 5 and 8 after 6: it keeps 6 and goes on with 8.
    """

    name: ClassVar[str] = "specdec++"
    threshold: float = 0.7

    def __post_init__(self) -> None:
        config = self.fitting(LmConfig)
        if not config.acceptance:
            raise ValueError(
                "this draft LM has no acceptance head; train one with 'draftwood train acceptance"
                " DATA OUTPUT --from' its folder, or choose method lm"
            )
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold must be a chance from 0 to 1, got {self.threshold}")
        self.prepare()

    def start(self, request: DraftRequest) -> DraftSession:
        return _SpecDecPlusPlusSession(self, request)


class _SpecDecPlusPlusSession(GatedDrafts):
    def __init__(self, drafter: SpecDecPlusPlus, request: DraftRequest) -> None:
        embeddings, network = drafter.target.embeddings_and_head, drafter.placed.network
        super().__init__(drafter, request, LmText(network, embeddings, self._logits))
        self.acceptance, self.threshold = network.acceptance, drafter.threshold
        self.all_accepted = 1.0
        self.state: Float[Tensor, "1 dim"] | None = None  # of the LM at the newest node

    def _logits(self, states: Float[Tensor, "rows dim"]) -> Any:
        self.state = states[-1:]
        return self.drafter.placed.logits(states)

    @torch.no_grad()
    def goes_on(self, node: int) -> bool:
        """True unless a rejection is likely; the root is text already."""
        chance = 1.0
        if node:
            assert self.state is not None
            chance = self.all_accepted * float(self.acceptance(self.state).sigmoid())
        self.all_accepted = chance
        return 1.0 - chance <= self.threshold
