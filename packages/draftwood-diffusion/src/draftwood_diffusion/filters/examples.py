"""Examples for a filter: confidences of a block, and which predictions stayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from draftwood.engine import Options, run_all
from draftwood_diffusion.loop import MaskedText, written
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.rules.learned import known_confidence
from draftwood_diffusion.rules.oracle import KnownText
from draftwood_diffusion.unmasking import Unmasking
from draftwood_diffusion.view import View


@dataclass(frozen=True, eq=False)
class Examples:
    """Passes over blocks.

    Attributes:
        confidence: [passes places], 1 where a token is written and behind a shorter block.
        stays: [passes places], True where the likeliest token is that of the finished text.
        counts: [passes places], True where a place was open.
    """

    confidence: Float[np.ndarray, "passes places"]
    stays: Bool[np.ndarray, "passes places"]
    counts: Bool[np.ndarray, "passes places"]

    def __len__(self) -> int:
        return len(self.confidence)

    def of(self, chosen: Int[np.ndarray, " chosen"]) -> "Examples":
        """Some of them."""
        return Examples(self.confidence[chosen], self.stays[chosen], self.counts[chosen])


@dataclass(frozen=True)
class WatchedOracle(KnownText):
    """The oracle, which notes what it sees as long as all that is written is right."""

    seen: list[View] = field(default_factory=list)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        reference = view.reference
        assert reference is not None  # it is told the text
        if (view.is_open | (view.tokens == reference) | (reference < 0)).all():
            self.seen.append(replace(view, history=()))
        return super().choose(view)


def collect(
    masked: MaskedModel,
    prompts: Sequence[Sequence[int]],
    options: Options,
    told: Callable[[int], None] = lambda prompts: None,
) -> Examples:
    """Write texts one by one, then again by the oracle, and note each of its passes.

    As Learn2PD's authors collect (2025, arXiv:2509.25188), but that a block is left out from where
    the oracle had to fix a token that the text does not hold.

    Args:
        masked: a model that fills masks.
        prompts: their tokens.
        options: of the texts, which are written at temperature 0.
        told: called with the number of prompts that are done.

    Raises:
        ValueError: for no prompts.
    """
    if not prompts:
        raise ValueError("a filter learns from texts behind prompts; give at least one prompt")
    oracle = WatchedOracle()
    for number, prompt in enumerate(prompts, 1):
        reference = written(masked, prompt, options, Unmasking()).tokens
        task = MaskedText(masked, prompt, options, Unmasking(rule=oracle), reference)
        for _ in run_all([task]):
            pass
        told(number)
    return examples_of(oracle.seen, masked.settings.block_length)


def examples_of(views: Sequence[View], places: int) -> Examples:
    """Examples of blocks as they were seen, filled up to so many places."""
    shape = (len(views), places)
    found = Examples(np.ones(shape), np.zeros(shape, bool), np.zeros(shape, bool))
    for row, view in enumerate(views):
        size = len(view.tokens)
        assert view.reference is not None
        found.confidence[row, :size] = known_confidence(view)
        found.stays[row, :size] = view.predictions == view.reference
        found.counts[row, :size] = view.is_open & (view.reference >= 0)
    return found
