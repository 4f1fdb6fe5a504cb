"""A request, and each tree as the target verified it: all that drafters and sources are given."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from draftwood.arrays import Float
from draftwood.models.model import Model, ModelOutput, ModelSession
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import MaskedSampler, Sampler, Sampling
from draftwood.tree import DraftTree

CUTS = ("temperature", "top_k", "top_p", "min_p")
"""Options of sampling that concern every row."""


@dataclass(frozen=True, eq=False)
class VerifiedTree:
    """A tree after verification, as drafters learn of it.

    The first ones are parts of the prompt, as chains that are all kept.

    Attributes:
        tree: what the forward pass read.
        path: nodes that are now part of the sequence, root included, in order.
        output: logits (and hidden states, where asked for) of every node of the forward pass, kept
            or not, and behind them of the rows that the drafter attached; None where the drafter
            said that it reads neither, and of tokens of a prompt that nothing was computed of,
            where it does not need that.
    """

    tree: DraftTree
    path: Sequence[int]
    output: ModelOutput | None = None

    @cached_property
    def tokens(self) -> list[int]:
        """The tokens that are now part of the sequence."""
        return [self.tree.token_list[node] for node in self.path]

    @property
    def logits(self) -> Float[np.ndarray, "nodes vocab"]:
        """The target's logits at every node of the tree."""
        if self.output is None:
            raise ValueError("a drafter that reads logits must say so in reads")
        return self.output.rows


class PredictedText:
    """A text that an answer may follow, and what became of it in one text.

    Args:
        tokens: of the text, at least one.

    Attributes:
        counts: in the library's memory: ``followed``, ``agreeing`` and ``following``.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise ValueError("the prediction has no tokens; give some text, or leave it out")
        self.tokens = tuple(tokens)
        self.counts = library.integers([0, 0, self.tokens[0]])

    @property
    def followed(self) -> int:
        """Tokens of it that are now part of the answer."""
        return self.counts[0]

    @property
    def agreeing(self) -> int:
        """Newest tokens of the answer that follow it."""
        return self.counts[1]

    @property
    def following(self) -> int:
        """Token with which the answer would follow it further; -1 where it is elsewhere."""
        return self.counts[2]


@dataclass(frozen=True, eq=False)
class DraftRequest:
    """The request that a drafter drafts for, as far as it may know it.

    Attributes:
        sampler: how the target's logits become probabilities; drafting with the same options
            accepts most.
        rng: the request's only source of randomness.
        target: the target's own session, for drafters that read the target's cache.
        started: sessions of other models, which are closed with the request.
        prediction: a text that the answer may follow, for drafters that take one.
        same_text: whether the text is the same whatever is drafted, so that a head may begin in the
            midst of the prompt.
    """

    sampler: Sampler
    rng: Rng
    target: ModelSession
    started: list[ModelSession] = field(default_factory=list)
    prediction: PredictedText | None = None
    same_text: bool = False

    @property
    def mask(self) -> MaskedSampler | None:
        """Mask of forbidden draft tokens, for drafters that draw from rows of another origin."""
        drafting = self.sampler.for_drafting()
        return drafting if isinstance(drafting, MaskedSampler) else None

    @property
    def row_sampling(self) -> Sampling:
        """Temperature and cuts, to be used on the likeliest tokens of a row.

        Penalties, bias and ``min_tokens`` are left out: they concern few tokens, and what they do
        to acceptance is learnt online. A mask is left out too: the engine takes forbidden tokens
        out of the tree.
        """
        drafting = self.sampler.for_drafting()
        if isinstance(drafting, MaskedSampler):
            drafting = drafting.unmasked
        if not isinstance(drafting, Sampling):
            return Sampling(1.0)
        cuts = {name: getattr(drafting, name) for name in CUTS}
        return Sampling(**cuts)

    def start(self, model: Model) -> ModelSession:
        """A session of a model that drafts."""
        session = model.start()
        self.started.append(session)
        return session
