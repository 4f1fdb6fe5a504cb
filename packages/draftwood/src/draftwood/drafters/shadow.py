"""Draft with the target's own weights in 4 bits."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.drafters.build_resources import Resources
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Need
from draftwood.drafters.partial import PartialSession
from draftwood.models.model import Layers, require_ability
from draftwood.shapes import Shape, Widths
from draftwood.tree import Draw


@dataclass(frozen=True)
class FourBitShadow(Drafter):
    """The target drafts with its weights rounded to 4 bits, over its own cache.

    ML-SpecQD (Georganas et al. 2025, arXiv:2503.13565) drafts with a cast to 4 bits, QuantSpec
    (Tiwari et al. 2025, arXiv:2502.10424) with 4 bits and the target's cache. What a token costs on
    a CPU is reading the weights, and the shadow reads a half or a quarter of them.

    Differs from the papers: steps of 4 bits with a scale and an offset for each 32 weights in the
    place of MXFP4, and the cache stays as precise as it is.

    Args:
        shape: the tree to grow.
    """

    name: ClassVar[str] = "shadow"
    needs: ClassVar[frozenset[Need]] = frozenset({"layers"})
    uses: ClassVar[frozenset[Need]] = frozenset({"shape"})
    shape: Shape = field(default_factory=Widths)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        require_ability(resources.target, "shadow", cls.name)
        return cls(resources.shape or Widths())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def start(self, request: DraftRequest) -> DraftSession:
        return PartialSession(request, self.shape, Layers(shadow=True), self.name)
