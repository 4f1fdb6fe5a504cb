"""Drafters that draft while the target runs."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession
from draftwood.drafters.overlap import Overlap
from draftwood.tree import Draw


@dataclass(frozen=True, eq=False)
class Overlapping(Drafter):
    """Another drafter, which drafts while the target runs; texts are the same as without.

    Args:
        drafter: one whose sessions are ``BranchingSession``s.

    Raises:
        ValueError: for another drafter.
    """

    name: ClassVar[str] = "overlapping"
    drafter: Drafter
    overlap: Overlap | None = field(default_factory=Overlap)

    def __post_init__(self) -> None:
        if not self.drafter.drafts_ahead:
            raise ValueError(
                f"{self.drafter.name} cannot draft ahead; take a drafter that drafts with a model"
                " of its own, for instance a DraftModel"
            )
        object.__setattr__(self, "name", self.drafter.name)

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    @property
    def most_nodes(self) -> int:
        return self.drafter.most_nodes

    @property
    def in_turn(self) -> Drafter:
        return self.drafter

    def start(self, request: DraftRequest) -> DraftSession:
        return self.drafter.start(request)
