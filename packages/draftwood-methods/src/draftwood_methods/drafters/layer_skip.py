"""Draft with some of the target's own layers."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession
from draftwood.drafters.partial import PartialSession
from draftwood.drafters.resources import Resources
from draftwood.models.model import Layers
from draftwood.models.requirements import require_ability
from draftwood.shapes import Shape, Widths
from draftwood.tree import Draw
from draftwood_methods.layers import require_depth


def middle_layers(count: int) -> frozenset[int]:
    """Every other layer of the middle two thirds: what a model misses least without any search."""
    return frozenset(range(count // 6 + 1, count - count // 6, 2))


@dataclass(frozen=True)
class LayerSkip(Drafter):
    """The target drafts without some of its layers.

    Draft & Verify (Zhang et al. 2024, arXiv:2309.08168), SWIFT (Xia et al. 2025, arXiv:2410.06916).
    The layers that are kept read the target's own cache of the prefix. There is no second model and
    no second cache: what the draft writes after the committed tokens is overwritten when the tree
    goes through the whole target.

    Differs from the papers: whole layers are left out, not attention and MLP separately, and the
    set is given.

    Args:
        skipped: decoder layers to leave out.
        shape: the tree to grow.

    Example:
        The text is 1 2 3 4 5, and layers 2, 4 and 6 of eight are left out. The five others run 5
        over the cache of 1 2 3 4 and say 6, then run 6 and say 9. The whole target runs 5, 6 and 9,
        and says 6 after 5 and 7 after 6: it keeps 6 and goes on with 7.
    """

    name: ClassVar[str] = "layer-skip"
    needs = frozenset({"layers"})
    uses = frozenset({"shape"})
    skipped: frozenset[int]
    shape: Shape = field(default_factory=Widths)

    def __post_init__(self) -> None:
        object.__setattr__(self, "skipped", frozenset(self.skipped))

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        require_depth(resources.target, cls.name)
        return cls(middle_layers(resources.target.layers), resources.shape or Widths())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def start(self, request: DraftRequest) -> DraftSession:
        if not self.skipped:
            raise ValueError(f"{self.name} needs layers to skip, got none")
        layers = Layers(without_attention=self.skipped, without_mlp=self.skipped)
        require_ability(request.target.model, "partial", self.name)
        return PartialSession(request, self.shape, layers, self.name)
