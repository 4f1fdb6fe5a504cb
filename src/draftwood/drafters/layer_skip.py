"""Draft with some of the target's own layers."""

from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from draftwood.drafters.draft_model import DraftDistributions, ProbsBuffer
from draftwood.interfaces.drafter import Drafter, DraftRequest, DraftSession, Need, VerifiedTree
from draftwood.interfaces.model import ForwardInput, Layers, require_ability, require_layers
from draftwood.interfaces.resources import Resources
from draftwood.sampling import Context
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree, Draw

LEAST_LAYERS = 4  # of a model that does without some of them


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
    """

    name: ClassVar[str] = "layer-skip"
    uses: ClassVar[frozenset[Need]] = frozenset({"shape"})
    skipped: frozenset[int]
    shape: Shape = field(default_factory=Widths)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        layers = resources.target.layers
        if layers < LEAST_LAYERS:
            raise ValueError(
                f"layer-skip needs a model of at least {LEAST_LAYERS} layers, this one has {layers}"
            )
        require_ability(resources.target, "partial", cls.name)
        return cls(middle_layers(layers), resources.shape or Widths())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    def start(self, request: DraftRequest) -> DraftSession:
        return _LayerSkipSession(self, request)


class _LayerSkipSession(DraftSession):
    def __init__(self, config: LayerSkip, request: DraftRequest) -> None:
        self.shape, self.rng = config.shape, request.rng
        self.sampler = request.sampler.for_drafting()
        self.vocab = request.target.model.vocab_size
        self.session = request.target
        self.layers = Layers(without_attention=config.skipped, without_mlp=config.skipped)
        self._require_layers(config)
        self.memory = ProbsBuffer(config.shape.nodes, self.vocab)

    def propose(self, root: int, context: Context) -> DraftTree:
        laws = DraftDistributions(self.sampler, context, self.vocab, self.memory)

        def expand(tree: DraftTree, first: int) -> Float[Tensor, "nodes vocab"]:
            given = ForwardInput(self.session, tree, first, layers=self.layers)
            return laws.after(self.session.model.forward([given])[0].logits, tree, first)

        return self.shape.grow(root, expand, self.rng, context.room)

    def _require_layers(self, config: LayerSkip) -> None:
        model = self.session.model
        require_ability(model, "partial", config.name)
        require_layers(model, self.layers, config.name)
        if not config.skipped:
            raise ValueError(f"{config.name} needs layers to skip, got none")

    def update(self, verified: VerifiedTree) -> None:
        """Nothing to learn: the target's cache is the draft's cache."""
