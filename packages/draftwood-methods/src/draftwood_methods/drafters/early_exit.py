"""Draft with the target's first layers."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.drafters.resources import Resources
from draftwood.sampling import Context
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree, Draw
from draftwood_methods.exit_passes import ExitPasses, require_exits
from draftwood_methods.exits import Exits, exits_for


@dataclass(frozen=True, eq=False)
class EarlyExit(Drafter):
    """The target's first layers draft, and verification goes on where they stopped.

    LayerSkip (Elhoushi et al. 2024, arXiv:2404.16710) exits through the final norm and the output
    head of a model that was trained for it. Here the state goes through the norm and a square map,
    fitted in closed form on text that the model writes. Trees of depth one are PPD (Yang et al.
    2023, arXiv:2307.05908), which looks at some successors before a token's layers have all run.

    Args:
        layer: to stop before.
        exits: the maps; without one for the layer its states go through norm and head alone.
        shape: the tree to grow.

    Example:
        The text is 1 2 3 4 5. The first layers run 5, and the output head says 6 of their state;
        they run 6 and say 7. The target's other layers go on with the states of 5 and 6, all its
        layers run 7, and it says 6, 7 and 8: it keeps 6 7 and goes on with 8.
    """

    name: ClassVar[str] = "early-exit"
    needs = frozenset({"layers"})
    uses = frozenset({"shape", "stored"})
    layer: int
    exits: Exits | None = None
    shape: Shape = field(default_factory=Widths)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        target = resources.target
        require_exits(target, cls.name)
        return cls(target.layers // 3, exits_for(resources), resources.shape or Widths())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def start(self, request: DraftRequest) -> DraftSession:
        require_exits(request.target.model, self.name, self.layer)
        return _EarlyExitSession(self, request)


class _EarlyExitSession(DraftSession):
    def __init__(self, config: EarlyExit, request: DraftRequest) -> None:
        self.layer, self.shape = config.layer, config.shape
        self.passes = ExitPasses(request, config.exits, config.shape.nodes)

    def propose(self, root: int, context: Context) -> DraftTree:
        return self.passes.chain(self.shape, self.layer, root, context)

    def update(self, verified: VerifiedTree) -> None:
        """Nothing to learn: the target goes on with what was drafted."""
