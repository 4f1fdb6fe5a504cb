"""Drafters by name, made of what a target, a request for a method and this machine bring."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from draftwood.costs.budget import Budget
from draftwood.drafters import (
    Aded,
    Drafter,
    DraftModel,
    LayerSkip,
    MultiSource,
    Nothing,
    PromptLookup,
    Stand,
    SuffixDecoding,
    TokenRecycling,
)
from draftwood.interfaces.model import Model
from draftwood.interfaces.source import Source
from draftwood.shapes import Paths, Shape, Widths
from draftwood.sources import BigramPrior, NGrams, Suffix

DrafterName = Literal[
    "aded",
    "combined",
    "draft-model",
    "layer-skip",
    "nothing",
    "prompt-lookup",
    "stand",
    "suffix",
    "token-recycling",
]


@dataclass(frozen=True, eq=False)
class Resources:
    """What a drafter may be built of."""

    target: Model
    draft_model: Model | None
    shape: Shape | None
    budget: Budget
    prior: BigramPrior | None


def drafter_of(name: DrafterName, parts: Resources) -> Drafter:
    """The drafter of this name.

    Raises:
        ValueError: where a part does not fit it.
    """
    return _MAKERS[name](parts)


def middle_layers(count: int) -> frozenset[int]:
    """Every other layer of the middle two thirds: what a model misses least without any search."""
    return frozenset(range(count // 6 + 1, count - count // 6, 2))


def _layer_skip(parts: Resources) -> Drafter:
    layers = parts.target.layers
    if layers < 4:
        raise ValueError(f"layer-skip needs a model of at least 4 layers, this one has {layers}")
    return LayerSkip(middle_layers(layers), parts.shape or Widths())


def _token_recycling(parts: Resources) -> Drafter:
    shape = parts.shape
    if not isinstance(shape, Paths):
        raise ValueError(f"recycling fills a fixed tree of ranks: give a Paths shape, not {shape}")
    ranks = max(8, 1 + max(rank for level in shape.levels for rank in level.ranks))
    return TokenRecycling(shape, ranks, prior=parts.prior)


def _combined(parts: Resources) -> Drafter:
    known: tuple[Source, ...] = (Suffix(), NGrams())
    return MultiSource(known if parts.prior is None else (*known, parts.prior), parts.budget)


_MAKERS: dict[DrafterName, Callable[[Resources], Drafter]] = {
    "nothing": lambda parts: Nothing(),
    "draft-model": lambda parts: DraftModel(parts.draft_model, parts.shape or Widths()),  # type: ignore[arg-type]
    "layer-skip": _layer_skip,
    "prompt-lookup": lambda parts: PromptLookup(),
    "token-recycling": _token_recycling,
    "combined": _combined,
    "suffix": lambda parts: SuffixDecoding(budget=parts.budget),
    "stand": lambda parts: Stand(),
    "aded": lambda parts: Aded(),
}
