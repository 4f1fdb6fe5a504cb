"""Draft with the target's own weights in 4 bits."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Need
from draftwood.drafters.partial import PartialSession
from draftwood.drafters.resources import Resources
from draftwood.models.model import Layers
from draftwood.models.requirements import require_ability
from draftwood.shapes import Shape, Widths
from draftwood.tree import Draw


@dataclass(frozen=True)
class Int4SelfDraft(Drafter):
    """The target drafts with its weights rounded to 4 bits, over its own cache.

    ML-SpecQD (Georganas et al. 2025, arXiv:2503.13565) drafts with a cast to 4 bits, QuantSpec
    (Tiwari et al. 2025, arXiv:2502.10424) with 4 bits and the target's cache. What a token costs on
    a CPU is reading the weights, and the 4 bits are a half or a quarter of them.

    Differs from the papers: steps of 4 bits with a scale and an offset for each 32 weights in the
    place of MXFP4, and the cache stays as precise as it is.

    Args:
        shape: the tree to grow.

    Example:
        The text is 1 2 3 4 5. Passes with the weights in 4 bits read the cache of 1 2 3 4 and say 6
        after 5, 7 after 6 and 9 after 7. The target runs 5, 6, 7 and 9 with its own weights over
        the same places, and says 6, 7, 8: it keeps 6 7 and goes on with 8.
    """

    name: ClassVar[str] = "shadow"
    needs: ClassVar[frozenset[Need]] = frozenset({"layers"})
    uses: ClassVar[frozenset[Need]] = frozenset({"shape"})
    shape: Shape = field(default_factory=Widths)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        require_ability(resources.target, "int4", cls.name)
        return cls(resources.shape or Widths())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def start(self, request: DraftRequest) -> DraftSession:
        return PartialSession(request, self.shape, Layers(int4=True), self.name)
