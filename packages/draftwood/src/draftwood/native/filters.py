"""Rules of sampling besides the temperature, as whole steps follow them; see filters.h."""

from collections.abc import Mapping
from ctypes import addressof
from typing import Protocol

from draftwood.native import library
from draftwood.native.structures import CFilters


class DrawingRules(Protocol):
    """Options of ``sampling_params.DrawingOptions`` that filters read."""

    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float] | None: ...


class Filters:
    """Rules of one text.

    Args:
        options: of how its tokens are drawn.
    """

    def __init__(self, options: DrawingRules) -> None:
        bias = options.logit_bias or {}
        self._biased, self._biases = library.integers([*bias]), library.doubles([*bias.values()])
        penalties = options.presence_penalty, options.frequency_penalty
        self.reads_text = options.repetition_penalty != 1.0 or any(penalties)
        self.structure = CFilters(
            biased=addressof(self._biased),
            biases=addressof(self._biases),
            num_biased=len(bias),
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition=options.repetition_penalty,
            presence=options.presence_penalty,
            frequency=options.frequency_penalty,
        )
