"""A drafter and a verifier, ready to use."""

from dataclasses import dataclass

from draftwood.interfaces.drafter import Drafter
from draftwood.interfaces.verifier import Verifier


@dataclass(frozen=True, eq=False)
class Method:
    """Where draft tokens come from and which are kept, ready to use.

    Attributes:
        drafter: with its shape inside, where it takes one.
        verifier: decides what is kept.
        name: for reports.
    """

    drafter: Drafter
    verifier: Verifier
    name: str = "custom"

    @property
    def lossless(self) -> bool:
        """Whether the verifier keeps the model's distribution for any kind of draft at all."""
        return bool(self.verifier.exact_for)
