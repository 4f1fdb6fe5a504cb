"""Protocol of a drafter: it proposes trees of draft tokens, and learns what became of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from draftwood.drafters.resources import Need, Resources
from draftwood.models.model import RowsInput
from draftwood.models.verified import DraftRequest, VerifiedTree
from draftwood.sampling import Context
from draftwood.shapes.shape import Shape
from draftwood.tree import DraftTree, Draw

if TYPE_CHECKING:
    from draftwood.drafters.ahead import BranchingSession
    from draftwood.drafters.overlap import Overlap
    from draftwood.heads.trained import TrainedHead
    from draftwood.native.step import NativeDraft, NativeStep


@dataclass(frozen=True)
class Reads:
    """Outputs of the target's next forward pass that a drafter reads.

    Attributes:
        logits: of every node.
        hidden: layers whose hidden states it reads; layer i is the input of decoder layer i.
    """

    logits: bool = False
    hidden: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.logits or bool(self.hidden)


class DraftSession(ABC):
    """State of one request. The prompt comes first, in one ``update`` or in several."""

    @property
    def reads(self) -> Reads:
        """Asked before each pass: what ``update`` will read of it."""
        return Reads()

    @property
    def needs_prompt(self) -> bool:
        """True if ``update`` needs what the target computes of the prompt.

        Where it does not, tokens that are in the cache already come without an output. A head that
        drafts worse without it may do so where ``DraftRequest.same_text`` says that the text stays
        the same.
        """
        return bool(self.reads)

    @abstractmethod
    def propose(self, root: int, context: Context) -> DraftTree:
        """A tree below ``root``, the newest token; ``context`` holds the tokens before it.

        No path longer than ``context.max_draft_len`` can become text. The engine cuts off what is
        deeper, which gives the nodes left new numbers.
        """

    @abstractmethod
    def update(self, verified: VerifiedTree) -> None:
        """Learn what became of the last tree."""

    def attach(self, tree: DraftTree) -> RowsInput | None:
        """Give the pass that runs a tree with auxiliary rows behind its nodes; None runs it alone.

        The tree's nodes come first and see what they see alone. ``update`` finds what the pass says
        of the auxiliary rows behind them in ``VerifiedTree.output``; none of these is kept.

        Args:
            tree: as it is run, cut to what may become text.
        """
        return None

    @property
    def branching(self) -> "BranchingSession | None":
        """Itself where it can draft for outcomes that are not known yet."""
        return None

    def native(self, context: Context) -> "NativeDraft | None":
        """Give what the library needs to draft the next tree and to learn what becomes of it.

        None where Python drafts. Where it is something, ``commit_native`` is called in the place of
        ``update``.
        """
        return None

    def commit_native(self, step: "NativeStep") -> DraftTree:
        """Take note of a step that the library made; gives the tree for reports."""
        raise NotImplementedError(f"{type(self).__name__} gave the library nothing to draft with")

    def observe(self, step: "NativeStep", hidden: Mapping[int, Any]) -> None:  # noqa: B027
        """Called after ``commit_native``, with the hidden states that ``native`` asked for."""

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
        drafts_ahead: True if its sessions are ``BranchingSession``s.
        searches: True if it finds the best nodes itself; a ``BestFirst`` shape then says how many.
        takes_prediction: True if it drafts along ``DraftRequest.prediction``.
        overlap: how it drafts while the target runs; None drafts in turn.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    uses: ClassVar[frozenset[Need]] = frozenset()
    shape_type: ClassVar[type] = Shape
    drafts_ahead: ClassVar[bool] = False
    searches: ClassVar[bool] = False
    takes_prediction: ClassVar[bool] = False
    overlap: "Overlap | None" = None

    @classmethod
    def build(cls, resources: Resources) -> "Drafter":
        """The drafter for a target, with the settings of its paper.

        Raises:
            ValueError: where it does not go with this target.
        """
        return cls()

    @classmethod
    def unused_here(cls) -> frozenset[Need]:
        """Resources of ``uses`` that it would not read on this machine, so that none is made."""
        return frozenset()

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        """Name the draws that siblings of its trees may have in this shape.

        This is known before anything is loaded. A drafter that draws siblings itself overrides the
        method.
        """
        return frozenset({"chosen" if shape is None else shape.draw})

    @property
    def draws(self) -> frozenset[Draw]:
        """Draws that siblings of its trees may have.

        With a verifier that is exact for all of these the text is the target's own.
        """
        return self.labels(getattr(self, "shape", None))

    @property
    def most_nodes(self) -> int:
        """Most draft tokens of a tree; 0 where no setting says it."""
        shape: Shape | None = getattr(self, "shape", None)
        return 0 if shape is None else shape.nodes

    @property
    def learnable(self) -> "TrainedHead | None":
        """The trained head that may learn on from its rejected drafts; None without one."""
        return None

    def with_head(self, trained: "TrainedHead") -> "Drafter":
        """The drafter with another head in the place of ``learnable``, for texts to come."""
        raise NotImplementedError(f"{self.name} drafts with no head that learns")

    @property
    def in_turn(self) -> "Drafter":
        """The drafter without overlap."""
        return self

    @abstractmethod
    def start(self, request: DraftRequest) -> DraftSession:
        """A session for one request."""


def native_tree(step: "NativeStep", draft: "NativeDraft | None") -> DraftTree:
    """The tree of a whole step, for reports.

    Args:
        draft: what it was drafted with.
    """
    trees = None if draft is None else draft.drawn
    if trees is None or len(step.tokens) == 1:
        return DraftTree.of(step.tokens, step.parents)
    from draftwood.native.drawn_trees import kept_chances

    rows = kept_chances(step.tokens, step.parents, step.chances)
    return DraftTree.of(step.tokens, step.parents, trees.shape.draw, rows=rows)


def overlap_of(given: "bool | Overlap") -> "Overlap | None":
    """Read the user's choice of overlap; None for none.

    Raises:
        TypeError: for anything else.
    """
    if given is False:
        return None
    from draftwood.drafters.overlap import Overlap

    if isinstance(given, Overlap):
        return given
    if given is not True:
        raise TypeError(f"overlap must be True, False or an Overlap, got {given!r}")
    return Overlap()
