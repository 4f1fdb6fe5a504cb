"""A drafter and a verifier, ready to use, and what they promise of the text."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from draftwood.drafters.drafter import Drafter
from draftwood.tree import Draw
from draftwood.verifiers.verifier import Verifier

Lossy = Literal["same as one by one", "trades quality", "another aim"]
"""Promise of a method that is not lossless.

* ``same as one by one``: the text that the same aim gives token by token, without drafts.
* ``trades quality``: what the model says changes, for speed.
* ``another aim``: it answers another question than what the model would say.
"""

Promise = Literal["lossless", "same as one by one", "trades quality", "another aim"]
"""Promise of a method about its text. Nobody claims ``lossless``: it is computed."""


def promise_of(draws: Set[Draw], verifier: Verifier, otherwise: Lossy) -> Promise:
    """``lossless`` exactly where the verifier keeps the target's distribution for all of these
    draws.
    """
    return "lossless" if draws <= verifier.exact_for else otherwise


@dataclass(frozen=True, eq=False)
class Method:
    """A drafter and a verifier, ready to use.

    Attributes:
        drafter: with its shape inside, where it takes one.
        verifier: decides what is kept.
        name: for reports.
        otherwise: what it promises where it is not lossless.

    Raises:
        ValueError: where ``otherwise`` claims to be lossless.
    """

    drafter: Drafter
    verifier: Verifier
    name: str = "custom"
    otherwise: Lossy = "trades quality"

    def __post_init__(self) -> None:
        require_lossy(self.otherwise)

    @property
    def promise(self) -> Promise:
        """Guarantee for every text, by what drafter and verifier state."""
        return promise_of(self.drafter.draws, self.verifier, self.otherwise)

    @property
    def lossless(self) -> bool:
        """True if the text has the distribution that the model gives it."""
        return self.promise == "lossless"


def require_lossy(otherwise: str) -> None:
    """Raise ValueError where a method says of itself that it is lossless."""
    if otherwise == "lossless":
        raise ValueError(
            "whether a method is lossless is computed from its drafter's draws and its verifier's"
            " exact_for; say in otherwise what holds where it is not"
        )
