"""What the engine needs of a drafter: a tree of draft tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from draftwood.interfaces.model import Model, ModelSession, Output
from draftwood.interfaces.resources import Need, Resources
from draftwood.interfaces.shape import Shape
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler
from draftwood.tree import DraftTree, Draw


@dataclass(frozen=True, eq=False)
class VerifiedTree:
    """What the target made of a tree, as drafters learn it.

    The first one is the prompt, as a chain that is all kept.

    Attributes:
        tree: what the forward pass read.
        path: nodes that are now part of the sequence, root included, in order.
        output: logits (and hidden states, where asked for) of every node of the forward pass, kept
            or not; None where the drafter said that it reads neither, and of tokens of a prompt
            that nothing was computed of, where it does not need that.
    """

    tree: DraftTree
    path: Sequence[int]
    output: Output | None = None

    @cached_property
    def tokens(self) -> list[int]:
        """The tokens that are now part of the sequence."""
        return [self.tree.token_list[node] for node in self.path]

    @property
    def logits(self) -> Float[Tensor, "nodes vocab"]:
        """The target's logits at every node of the tree."""
        if self.output is None:
            raise ValueError("a drafter that reads logits must say so in reads")
        return self.output.logits


@dataclass(frozen=True, eq=False)
class DraftRequest:
    """What a drafter may know of the request it drafts for.

    Attributes:
        sampler: how the target's logits become probabilities; drafting with the same options
            accepts most.
        rng: the request's only source of randomness.
        target: the target's own session, for drafters that read the target's cache.
        started: sessions of other models, which are closed with the request.
    """

    sampler: Sampler
    rng: Rng
    target: ModelSession
    started: list[ModelSession] = field(default_factory=list)

    def start(self, model: Model) -> ModelSession:
        """A session of a model that drafts."""
        session = model.start()
        self.started.append(session)
        return session


@dataclass(frozen=True)
class Reads:
    """What a drafter reads of the target's next forward pass.

    Attributes:
        logits: of every node.
        hidden: layers whose hidden states it reads; layer i is the input of decoder layer i.
    """

    logits: bool = False
    hidden: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.logits or bool(self.hidden)


class DraftSession(ABC):
    """State of one request. The prompt is the first ``update``."""

    @property
    def reads(self) -> Reads:
        """Asked before each pass: what ``update`` will read of it."""
        return Reads()

    @property
    def needs_prompt(self) -> bool:
        """Whether ``update`` needs what the target computes of the prompt.

        Where it does not, tokens that are in the cache already come without an output.
        """
        return bool(self.reads)

    @abstractmethod
    def propose(self, root: int, context: Context) -> DraftTree:
        """A tree below ``root``, the newest token; ``context`` holds the tokens before it.

        No path longer than ``context.room`` can become text. The engine cuts off what is deeper,
        which gives the nodes left new numbers.
        """

    @abstractmethod
    def update(self, verified: VerifiedTree) -> None:
        """Learn what became of the last tree."""

    def native(self, context: Context) -> NativeDraft | None:
        """What the library needs to draft the next tree itself, and to learn what becomes of it.

        None where Python drafts. Where it is something, ``took`` is called in the place of
        ``update``.
        """
        return None

    def took(self, step: NativeStep) -> DraftTree:
        """Called after a step that the library made; gives the tree for reports."""
        raise NotImplementedError(f"{type(self).__name__} gave the library nothing to draft with")

    def follow(self, first: "DraftSession") -> None:  # noqa: B027
        """Called where another request of the same drafter has learnt the same prompt, before
        either proposes.

        ``first`` then proposes first, and learns nothing before this session has proposed too, so
        that this one may copy what ``first`` computes of the prompt.
        """

    def close(self) -> None:  # noqa: B027
        """Called once, when the request ends, however it does.

        Sessions of other models that ``DraftRequest.start`` gave are closed by themselves.
        """


class Drafter(ABC):
    """Settings and weights, shared by all requests.

    Attributes:
        name: as in the method table.
        needs: what it cannot do without; a method is refused where one of them is missing.
        uses: what it takes where it is there.
        shape_type: the shapes that it takes, where it uses one.
        drafts_ahead: whether its sessions are ``interfaces.ahead.BranchingSession``s.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset()
    shape_type: ClassVar[type] = Shape
    drafts_ahead: ClassVar[bool] = False

    @classmethod
    def build(cls, resources: Resources) -> "Drafter":
        """The drafter for a target, with the settings of its paper.

        Raises:
            ValueError: where it does not go with this target.
        """
        return cls()

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        """How the siblings of its trees may be drawn in this shape.

        This is known before anything is loaded. A drafter that draws siblings itself overrides the
        method.
        """
        return frozenset({"chosen" if shape is None else shape.draw})

    @property
    def draws(self) -> frozenset[Draw]:
        """How the siblings of its trees may be drawn.

        With a verifier that is exact for all of these the text is the target's own.
        """
        return self.labels(getattr(self, "shape", None))

    @abstractmethod
    def start(self, request: DraftRequest) -> DraftSession:
        """A session for one request."""
