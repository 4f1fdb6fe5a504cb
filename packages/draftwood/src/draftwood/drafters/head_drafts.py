"""Drafts of a trained head for one text, whatever runs the head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import (
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
    native_tree,
)
from draftwood.heads.native_text import NativeText
from draftwood.native.drawn_trees import DrawnTrees
from draftwood.native.head import SessionHead
from draftwood.native.head_session import MAX_RANKS
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.sampling import Context, Sampler, Sampling
from draftwood.shapes import BestFirst
from draftwood.shapes.shape import Shape, drawn_shape
from draftwood.tree import UNBOUNDED, DraftTree

if TYPE_CHECKING:
    from draftwood.drafters.mtp import Mtp


class HeadText(Protocol):
    """One text of a trained head, in C++ or in PyTorch."""

    def take(
        self,
        tokens: Sequence[int],
        hidden: Mapping[int, Any],
        path: Sequence[int],
    ) -> None:
        """Take note of tokens that became text; their rows are run when they are needed.

        Args:
            hidden: the target's states [nodes dim], by layer; none of tokens of a prompt that were
                in the cache, behind which a head that reads states begins.
            path: where those of the tokens lie in them.
        """
        ...

    def level(self, tree: DraftTree, first: int) -> Any:
        """Logits [nodes draft_vocab] after the nodes of a tree from ``first`` on, valid until the
        next call.

        Level 0 is the root alone, and comes first. Each further level holds all nodes since.
        """
        ...

    def drop(self) -> None:
        """Forget what was drafted."""
        ...

    def follow(self, first: Any) -> None:
        """Take over what was run for another text of this head with the same prompt."""
        ...


class BranchingText(HeadText, Protocol):
    """A text that others go on from."""

    def branch(self) -> "BranchingText":
        """Begin another text with the same rows."""
        ...


OverHead = Union[HeadDrafter, "Mtp"]
"""Settings of a drafter that grows trees with a head."""


class HeadDrafts(DraftSession):
    """Grows the trees of one text with a trained head.

    Where the library runs the head, and makes whole steps, it grows best-first trees by itself, and
    draws those that it can draw.

    Args:
        drafter: its settings.
        text: the head at work on this text.
    """

    def __init__(self, drafter: OverHead, request: DraftRequest, text: HeadText) -> None:
        self.drafter: Any = drafter
        self.rng, self.text = request.rng, text
        self.sampler = request.sampler.for_drafting()
        self._reads = Reads(hidden=tuple(dict.fromkeys(drafter.reads)))
        self._same_text = request.same_text
        self._first: HeadDrafts | None = None  # has the rows of this one's prompt
        self._native: NativeDraft | None = None

    @property
    def reads(self) -> Reads:
        return self._reads

    @property
    def needs_prompt(self) -> bool:
        return bool(self._reads) and not self._same_text

    def follow(self, first: DraftSession) -> None:
        if isinstance(first, HeadDrafts):
            self._first = first

    def update(self, verified: VerifiedTree) -> None:
        hidden = {} if verified.output is None else verified.output.hidden
        self.text.take(verified.tokens, hidden, verified.path)

    def propose(self, root: int, context: Context) -> DraftTree:
        self._copy_prompt()
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        shape, vocabulary = self.drafter.shape, self.drafter.vocabulary
        tree = vocabulary.grow(shape, root, self.level, self.sampler, context, self.rng)
        self.text.drop()
        return tree

    def level(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits after the nodes of a tree from ``first`` on; see ``HeadText``."""
        return as_array(self.text.level(tree, first))

    def native(self, context: Context) -> NativeDraft | None:
        if self._native is None and isinstance(self.text, NativeText):
            self._native = self._handed_over(self.text)
        return self._native

    def _handed_over(self, text: NativeText) -> NativeDraft | None:
        """Leave the text to the library, where it grows such trees."""
        shape, hidden = self.drafter.shape, self.reads.hidden
        if children_of(shape):
            assert isinstance(shape, BestFirst)
            self._copy_prompt()
            drafting = text.drafting(shape.size, shape.depth, shape.width, shape.floor)
            return NativeDraft(drafting.costs, hidden=hidden, head=drafting, in_a_row=UNBOUNDED)
        drawn, sampler = drawn_shape(shape), self.sampler
        if drawn is None or not isinstance(sampler, Sampling):
            return None
        self._copy_prompt()
        drafting = text.drafting(drawn.nodes, shape.depth, 1)
        trees = DrawnTrees(drafting, drawn, sampler.temperature, self.rng.noise)
        return NativeDraft(trees.costs, hidden=hidden, drawn=trees, in_a_row=UNBOUNDED)

    def commit_native(self, step: NativeStep) -> DraftTree:
        return native_tree(step, self._native)

    def _copy_prompt(self) -> None:
        """Take over the rows that were run for another request with the same prompt."""
        first, self._first = self._first, None
        if first is not None:
            self.text.follow(first.text)


def children_of(shape: Shape) -> int:
    """Children that a node of the library's own trees may have; 0 where Python grows the tree."""
    return shape.width if type(shape) is BestFirst and shape.width <= MAX_RANKS else 0


def native_text(head: SessionHead, drafter: OverHead, sampler: Sampler) -> NativeText:
    """Begin a text of a head that the library runs."""
    temperature = getattr(sampler.for_drafting(), "temperature", 1.0)
    return NativeText(head, drafter.reads, children_of(drafter.shape), temperature)
