"""Draft with those of the target's own layers that it needs most, found on the way."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.drafters.partial import PartialSession
from draftwood.drafters.resources import Resources
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.shapes import Shape, Widths
from draftwood.tree import Draw
from draftwood_methods.drafters.layer_sets import (
    MOST_RATIO,
    SET,
    USUAL_RATIO,
    Units,
    agreement,
    found_alone,
    likely_better,
    programme,
    time_ratio,
)
from draftwood_methods.layers import require_depth

Search = Literal["swift", "programme"]

WINDOW = 32  # newest tokens that a set is tried on
PRICES: dict[Search, float] = {"swift": 6.0, "programme": 12.0}
"""Plain passes that a search takes as long as: two trials, or one programme."""
BAYESIAN = 3  # every so many-th step of SWIFT's is Bayesian, the others are random


@dataclass(frozen=True)
class LayerSearch(Drafter):
    """The target drafts without the parts of its layers that it misses least.

    ``swift`` (Xia et al. 2025, arXiv:2410.06916) tries random sets, and now and then the one that
    a Bayesian step names, on the newest 32 tokens, and keeps what says more of them than the set at
    hand does. ``programme`` finds a set from the hidden states of the newest token: whole layers as
    in CLaSp (Chen et al. 2025, arXiv:2505.24196), or attention and MLP apart by what they cost, as
    in KnapSpec (Cha et al. 2026, arXiv:2602.20217). Until the first search the set is the one that
    a programme has found in a text that the model wrote when the method was built.

    Differs from the papers: a search waits until it is at most so large a part of all passes, 120
    or 240 as things are set, so that shorter texts keep the first set; it is counted in passes, not
    in seconds, so that a seed names one text.

    Args:
        search: how sets are found.
        share: of the layers' time that is saved, between 0 and 0.9.
        most: part of the passes that searches may take.
        halves: whether attention and MLP are left out apart, where the model can do so.
        ratio: how often a layer's attention goes into its MLP by time; None measures it, where
            halves are left out, when the method is built.
        shape: the tree to grow.
        first: the layers to begin with; None leaves every other one of the middle out.

    Raises:
        ValueError: for shares that are none.

    Example:
        The text is 1 2 3 4 5. The set at hand leaves layers 2 and 4 of six out and drafts 6 9; the
        target says 6 and 7, keeps 6 and goes on with 7. Once searches would be a small part of all
        passes one runs the newest token: without layers 3 and 4 its states stay nearer to the whole
        model's. So the next tree is drafted without these two.
    """

    name: ClassVar[str] = "layer-search"
    needs = frozenset({"layers"})
    uses = frozenset({"shape"})
    search: Search = "programme"
    share: float = 0.4
    most: float = 0.05
    halves: bool = False
    ratio: int | None = None
    shape: Shape = field(default_factory=Widths)
    first: tuple[bool, ...] | None = None

    def __post_init__(self) -> None:
        if self.search not in PRICES:
            raise ValueError(
                "search is programme, as in CLaSp and KnapSpec, or swift, as in SWIFT, got"
                f" {self.search!r}"
            )
        known = self.ratio is None or 1 <= self.ratio <= MOST_RATIO
        if not 0.0 < self.share <= 0.9 or self.most < 0.0 or not known:
            raise ValueError(
                "share is above 0 and at most 0.9, most at least 0 and ratio from 1 to"
                f" {MOST_RATIO}, got {self.share}, {self.most} and {self.ratio}"
            )

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(shape=resources.shape or Widths()).fitted(resources.target)

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def fitted(self, model: Model) -> "LayerSearch":
        """The same with what is found out of a model before any text."""
        units = self.units(model)
        if self.ratio is None and units.halves:
            units = replace(units, ratio=time_ratio(model))
        first = tuple(found_alone(model, units, self.share))
        return replace(self, ratio=units.ratio, first=first)

    def start(self, request: DraftRequest) -> DraftSession:
        return _LayerSearchSession(self, request, self.units(request.target.model))

    def units(self, model: Model) -> Units:
        """Units of a model that may be left out.

        Raises:
            ValueError: for a model that cannot be searched.
        """
        require_depth(model, self.name)
        for ability in ("resume", "fork"):
            require_ability(model, ability, self.name)
        halves = self.halves and "halves" in model.abilities
        return Units(model.layers, halves, self.ratio or USUAL_RATIO)


class _LayerSearchSession(PartialSession):
    def __init__(self, config: LayerSearch, request: DraftRequest, units: Units) -> None:
        self.config, self.units = config, units
        self.left_out = units.evenly(config.share)
        if config.first is not None:
            if len(config.first) != len(self.left_out):
                raise ValueError(
                    f"first says of each of {len(self.left_out)} parts of this model whether it is"
                    f" left out, got {len(config.first)}"
                )
            self.left_out = np.array(config.first)
        super().__init__(request, config.shape, units.layers(self.left_out), config.name)
        self.newest: list[int] = []
        self.seen: list[tuple[SET, float]] = []
        self.credit = 0.0  # passes that searches may still take
        self.begun = False
        self.chance = np.random.default_rng(0)  # apart from the request's, which draws the text

    def update(self, verified: VerifiedTree) -> None:
        self.newest = [*self.newest, *verified.tokens][-WINDOW - 1 :]
        if self.begun:  # the prompt is over
            self.credit += self.config.most
        self.begun = True
        if self.credit < PRICES[self.config.search] or len(self.newest) <= WINDOW:
            return
        self.credit -= PRICES[self.config.search]
        with suppress(MemoryError):  # a fork has no room: the set stays
            self._take(self._found())

    def _found(self) -> SET:
        session = self.passes.session
        if self.config.search == "programme":
            return programme(session, self.newest[-2:], self.units, self.config.share)
        now = agreement(session, self.newest, self.units.layers(self.left_out))
        self.seen.append((self.left_out, now))
        trial = self._trial()
        score = agreement(session, self.newest, self.units.layers(trial))
        self.seen.append((trial, score))
        return trial if score > now else self.left_out

    def _trial(self) -> SET:
        if len(self.seen) % (2 * BAYESIAN) == 2 * BAYESIAN - 1:
            return likely_better(self.units, self.seen, self.config.share, self.chance)
        return self.units.drawn(self.config.share, self.chance)

    def _take(self, left_out: SET) -> None:
        self.left_out, self.layers = left_out, self.units.layers(left_out)
