"""Draft with the target itself, reading only the first and the newest of a long text."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession
from draftwood.drafters.partial import PartialSession
from draftwood.drafters.resources import Resources
from draftwood.models.model import Layers
from draftwood.models.requirements import require_ability
from draftwood.sampling import Context
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree, Draw

SINKS, WINDOW = 4, 508
LEAST_WINDOW = 16


@dataclass(frozen=True)
class Windowed(Drafter):
    """The whole target drafts, and reads its first places and a window of the newest ones.

    First places draw attention whatever they hold, and with them a window goes on fluently
    (StreamingLLM, Xiao et al. 2023, arXiv:2309.17453). It is what LongSpec (Yang et al. 2025,
    arXiv:2502.17421) offers without training: drafting at a price that does not grow with the text.
    Texts that are shorter than what is read are not drafted for, as nothing would be saved.

    Args:
        sinks: first places that are read.
        window: newest places that are read, at least 16.
        shape: the tree to grow.

    Raises:
        ValueError: for a window below 16, or sinks below 0.

    Example:
        With one first place and the two newest ones: the text is 1 2 3 4 5. The draft behind 5
        reads 1, 3 and 4 of the cache and says 6; the draft behind 6 reads the same places and 5,
        and says 7. The target reads all, says 6 after 5 and 8 after 6: it keeps 6 and goes on with
        8. A real window has 16 places at least.
    """

    name: ClassVar[str] = "windowed"
    needs = frozenset({"layers"})
    uses = frozenset({"shape"})
    sinks: int = SINKS
    window: int = WINDOW
    shape: Shape = field(default_factory=Widths)

    def __post_init__(self) -> None:
        if self.window < LEAST_WINDOW or self.sinks < 0:
            raise ValueError(
                f"a window has at least {LEAST_WINDOW} places and no negative number of first ones,"
                f" got {self.window} and {self.sinks}"
            )

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        require_ability(resources.target, "window", cls.name)
        limit = resources.target.context_length or 2 * WINDOW
        # of a short context half, as there is nothing to draft before the window is full
        window = max(LEAST_WINDOW, min(WINDOW, limit // 2))
        return cls(window=window, shape=resources.shape or Widths())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def start(self, request: DraftRequest) -> DraftSession:
        limit = request.target.model.context_length
        if limit is not None and self.sinks + self.window > limit:
            raise ValueError(
                f"a window of {self.sinks} + {self.window} places is longer than the model's"
                f" context of {limit}; take a smaller one"
            )
        layers = Layers(window=(self.sinks, self.window))
        return _WindowedSession(request, self.shape, layers, self.name)


class _WindowedSession(PartialSession):
    def propose(self, root: int, context: Context) -> DraftTree:
        assert self.layers.window is not None
        if self.passes.session.length <= sum(self.layers.window):
            return DraftTree.of([root], [-1])
        return super().propose(root, context)
