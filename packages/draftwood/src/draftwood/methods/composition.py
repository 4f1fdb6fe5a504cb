"""Parts of a published method."""

from dataclasses import dataclass

from draftwood.drafters import Drafter
from draftwood.drafters.resources import Need
from draftwood.engine.method import Lossy, Promise, promise_of, require_lossy
from draftwood.shapes import Shape
from draftwood.verifiers import Verifier


@dataclass(frozen=True, eq=False)
class MethodSpec:
    """Specification of a published method: its drafter, shape and verifier.

    Attributes:
        name: as given to ``--method``.
        summary: one line.
        source: authors, year, arXiv id or address.
        drafter: what it drafts with; its class says what it needs and uses.
        shape: default tree, for drafters that take one.
        verifier: what decides.
        otherwise: what it promises where it is not lossless.

    Raises:
        ValueError: where ``otherwise`` claims to be lossless.
    """

    name: str
    summary: str
    source: str
    drafter: type[Drafter]
    shape: Shape | None
    verifier: Verifier
    otherwise: Lossy = "trades quality"

    def __post_init__(self) -> None:
        require_lossy(self.otherwise)

    @property
    def needs(self) -> frozenset[Need]:
        """Resources that its drafter cannot do without."""
        return self.drafter.needs

    @property
    def uses(self) -> frozenset[Need]:
        """Resources that its drafter takes where they are there."""
        return self.drafter.uses

    @property
    def drafts_ahead(self) -> bool:
        """True if it can draft while the target runs."""
        return self.drafter.drafts_ahead

    @property
    def promise(self) -> Promise:
        """Promise that the method makes of its text, known before it is built."""
        return promise_of(self.drafter.labels(self.shape), self.verifier, self.otherwise)

    @property
    def lossless(self) -> bool:
        """True if the text has the distribution that the model gives it."""
        return self.promise == "lossless"
