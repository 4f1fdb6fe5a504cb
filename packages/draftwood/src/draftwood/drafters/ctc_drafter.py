"""Draft what frames say side by side, once equal neighbours are merged and blanks dropped."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.drafters.draft_vocabulary import DraftVocabulary, TrainedDrafter
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.drafters.resources import Resources, needed
from draftwood.heads.ctc import CtcConfig, frames_of
from draftwood.heads.lattice import FrameRows, Frames, Pairs, Prefix, logarithms
from draftwood.heads.native_side import native_frames
from draftwood.heads.prefix_search import (
    collapsed_alignments,
    likeliest_prefixes,
    released_paths,
)
from draftwood.models.model import CHUNK
from draftwood.native.frames import NativeFrames
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.shapes import BestFirst
from draftwood.shapes.shape import Shape
from draftwood.tree import DraftTree
from draftwood.validation import positive

Search = Literal["prefix", "paper", "released", "raw"]
COLLAPSED = ("paper", "released")
"""Searches that collapse raw paths, for which frames need a blank."""
States = list[Any]
"""The target's states at the nodes of a pass, of each layer that the head reads."""


@dataclass(frozen=True, eq=False)
class CtcDrafter(TrainedDrafter):
    """A tree of what a CTC head says of the next places, after a single call of the head.

    CTC-drafter (Wen et al. 2024, arXiv:2412.00061), with a true blank and with frames in parallel,
    as the paper has it and its code has not. By default the tree holds the likeliest *prefixes*,
    each of which sums over all its alignments. ``search="paper"`` collapses the likeliest raw paths
    instead, ``search="released"`` the 63 of the released code, and ``search="raw"`` takes frame d
    for depth d, as Medusa does.

    With a shape, children are drawn from the frames' own next-token distribution. It is known: a
    prefix's chances add up to those of its continuations and of its end; so rejection sampling
    keeps the target's distribution, which the paper holds to be impossible. Before a node's
    children are drawn a coin decides whether the frames end there.

    The library runs the head where it runs the target.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: a tree to grow in the place of a search.
        search: what the tree holds without a shape.
        nodes: most draft tokens without a shape.
        depth: most levels without a shape; None for as many as there are frames.
        ranks: symbols of each frame that the paper's search combines.
        alignments: raw paths that it looks at, at most.

    Raises:
        ValueError: where the head is of another kind, or does not fit target or search.

    Example:
        The text is 1 2 3 4 5. One call of the head gives frames whose likeliest symbols are 6 6 - 7
        -, where - is the blank. Equal neighbours become one and blanks go, so this alignment reads
        6 7, as do 6 - - 7 - and others; their probabilities add up. The likeliest prefixes are 6,
        then 6 7 and 8, and these are drafted. The target says 6 after 5 and 9 after 6: it keeps 6
        and goes on with 9.
    """

    name: ClassVar[str] = "ctc"
    searches: ClassVar[bool] = True
    shape: Shape | None = None
    search: Search = "prefix"
    nodes: int = 8
    depth: int | None = None
    ranks: int = 10
    alignments: int = 4096
    config: CtcConfig = field(init=False, repr=False)
    native: NativeFrames | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        config = self.fitting(CtcConfig)
        positive("nodes, ranks and alignments", [self.nodes, self.ranks, self.alignments])
        if self.search not in get_args(Search):
            known = ", ".join(get_args(Search))
            raise ValueError(f"search must be one of {known}, got {self.search!r}")
        if self.search in COLLAPSED and (self.shape is not None or not config.has_blank):
            raise ValueError(
                f"search {self.search!r} makes a tree of its own, of frames with a blank; leave the"
                " shape out, or choose search 'prefix' or 'raw'"
            )
        object.__setattr__(self, "config", config)
        object.__setattr__(self, "native", native_frames(self.trained, self.target))
        self.require_runtime(self.native)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        head, shape = needed(resources.head), resources.shape
        if isinstance(shape, BestFirst):  # the search finds the best nodes of all
            return cls(head, resources.target, nodes=shape.size, depth=shape.depth)
        return cls(head, resources.target, shape)

    @property
    def most_nodes(self) -> int:
        return self.nodes if self.shape is None else self.shape.nodes

    def start(self, request: DraftRequest) -> DraftSession:
        if self.native is not None:
            return _NativeCtcSession(self, request, self.native)
        return self.runner.ctc_session(self, request)

    def read(self, probs: FrameRows) -> Frames:
        """The distribution of texts that the frames are taken for."""
        return frames_of(self.config, probs, self._pairs, merges=self.search != "raw")

    def searched(self, probs: FrameRows, root: int, max_draft_len: int) -> DraftTree:
        """The tree without a shape."""
        max_draft_len = min(max_draft_len, self.depth or max_draft_len)
        if self.search == "paper":
            tree = collapsed_alignments(
                probs, self.nodes, self.ranks, self.alignments, max_draft_len=max_draft_len
            )
        elif self.search == "released":
            tree = released_paths(probs, self.nodes, max_draft_len=max_draft_len)
        else:
            tree = likeliest_prefixes(self.read(probs), self.nodes, max_draft_len=max_draft_len)
        tokens = [root, *(self._known[place] for place in tree.token_list[1:])]
        return DraftTree.of(tokens, tree.parent_list)

    @cached_property
    def _pairs(self) -> Pairs | None:
        """The head's pairwise term, of the draft vocabulary's tokens; None without one."""
        if not self.config.pairwise:
            return None
        tokens, ends = self.vocabulary.tokens, self.target.embeddings_and_head
        if self.native is None:
            return self.placed.network.pairs(ends.embed(tokens), self.placed.logits)
        before, after = (
            self.trained.weights[f"pairwise.{name}_proj.weight"] for name in ("before", "after")
        )
        return Pairs.of(before, ends.embed(tokens), ends.logits(after.T, tokens, normed=True))

    @cached_property
    def _known(self) -> list[int]:
        """The draft vocabulary's tokens."""
        return self.vocabulary.tokens.tolist()


@dataclass(frozen=True, eq=False)
class CtcPaper(CtcDrafter):
    """The paper's search: a tree of raw paths through the frames, as wide as Medusa's, collapsed.

    CTC-drafter (Wen et al. 2024, arXiv:2412.00061).

    Example:
        The text is 1 2 3 4 5, and the likeliest paths are 6, 6 6 - 7 and 6 - 8, where - is the
        blank. Collapsed they read 6, 6 7 and 6 8, which share the node 6. The target says 6 after 5
        and 8 after 6, then 9: it keeps 6 8 and goes on with 9.
    """

    name: ClassVar[str] = "ctc-paper"
    shape_type: ClassVar[type] = BestFirst
    search: Search = "paper"


@dataclass(frozen=True, eq=False)
class CtcRaw(CtcDrafter):
    """Frames as they are: frame d drafts depth d, as Medusa's heads do, and a blank ends a text.

    Example:
        The text is 1 2 3 4 5. The first frame says 6 or 8, the second 7, the third a blank. Drafted
        are 6 7 and 8 7, and nothing below. The target says 6 after 5 and 9 after 6: it keeps 6 and
        goes on with 9.
    """

    name: ClassVar[str] = "ctc-raw"
    search: Search = "raw"


class CtcSession(DraftSession):
    """Tokens that wait, and the tree that is drafted; each runtime of the head reads the frames.

    Attributes:
        late: tokens of the sequence whose rows the head has not taken in. A row may read the token
            at the next place, so the newest always waits.
    """

    def __init__(self, drafter: CtcDrafter, request: DraftRequest) -> None:
        self.drafter, self.rng = drafter, request.rng
        self.sampler = request.sampler.for_drafting()
        self.layers, self.same_text = drafter.config.reads, request.same_text
        self.late: list[int] = []

    @property
    def reads(self) -> Reads:
        return Reads(hidden=tuple(dict.fromkeys(self.layers)))

    @property
    def needs_prompt(self) -> bool:
        return not self.same_text

    def update(self, verified: VerifiedTree) -> None:
        if verified.output is None:  # of tokens in the cache: rows begin behind them
            self.late = []
            self.forget()
            return
        self.late += verified.tokens
        hidden = verified.output.hidden
        self.learn([hidden[each] for each in self.layers], list(verified.path))
        if len(self.late) > CHUNK:
            self.take_in(self.late[1:])
            self.late = self.late[-1:]

    def propose(self, root: int, context: Context) -> DraftTree:
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        probs, self.late = self.probs([*self.late[1:], root]), []
        if probs is None:
            return replace(DraftTree.of([root], [-1]), is_broken=True)
        shape = self.drafter.shape
        if shape is None:
            return self.drafter.searched(probs, root, context.max_draft_len)
        grown = GrownPrefixes(self.drafter.read(probs), self.drafter.vocabulary, self.rng)
        if shape.draw == "chosen" or not self.rng.noise:
            grown.tosses = False
        tree = self.drafter.vocabulary.grow(
            shape, root, grown.logits, self.sampler, context, self.rng
        )
        return grown.without_ended(tree)

    @abstractmethod
    def learn(self, states: States, path: list[int]) -> None:
        """Keep the target's states of each layer at the newest tokens, which are rows of a pass."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the states that wait."""

    @abstractmethod
    def take_in(self, following: list[int]) -> object:
        """Append the rows whose next tokens are known.

        Args:
            following: these tokens.
        """

    @abstractmethod
    def probs(self, following: list[int]) -> Float[np.ndarray, "frames symbols"] | None:
        """Append rows, and read the frames after the last of them; None if they say NaN."""


class _NativeCtcSession(CtcSession):
    """The same in the library, which reads states where the target's passes left them."""

    def __init__(self, drafter: CtcDrafter, request: DraftRequest, native: NativeFrames) -> None:
        super().__init__(drafter, request)
        self.frames = native.start()
        self.passes: list[tuple[States, list[int]]] = []  # and rows of them

    def learn(self, states: States, path: list[int]) -> None:
        self.passes.append((states, path))

    def forget(self) -> None:
        self.passes = []

    def take_in(self, following: list[int]) -> None:
        for part in self._parts(following):
            self.frames.take(*part)
        states, rows = self.passes[-1]
        self.passes = [([as_array(each)[rows[-1:]] for each in states], [0])]

    def probs(self, following: list[int]) -> Float[np.ndarray, "frames symbols"] | None:
        *earlier, newest = self._parts(following)
        for part in earlier:
            self.frames.take(*part)
        probs = self.frames.probs(*newest)
        self.passes.clear()
        return None if np.isnan(probs[:, 0]).any() else probs

    def _parts(self, following: list[int]) -> list[tuple[States, list[int], list[int]]]:
        """States of each pass, the rows that are taken of it, and the token behind each."""
        parts, first = [], 0
        for states, rows in self.passes:
            tokens = following[first : first + len(rows)]
            if tokens:
                parts.append((states, rows[: len(tokens)], tokens))
            first += len(rows)
        return parts


class GrownPrefixes:
    """Next-token distributions after the nodes of a tree that a shape grows from frames.

    Whether the frames end at a node is tossed before its children are drawn, whatever they would
    be. A node where they do keeps one, so that shapes have something to draw from; its children
    are dropped once the tree has grown. As the toss knows nothing of them, what is left is drawn
    from what its rows state.

    Args:
        frames: what they say.
        vocabulary: to know draft tokens by.
    """

    tosses = True

    def __init__(self, frames: Frames, vocabulary: DraftVocabulary, rng: Rng) -> None:
        self._frames, self._vocabulary, self._rng = frames, vocabulary, rng
        self._prefixes: list[Prefix] = [frames.start()]
        self._ended: list[bool] = []

    def logits(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logarithms of the probabilities after the nodes from ``first`` on."""
        for node, token in zip(range(first, len(tree)), self._places(tree, first), strict=True):
            if node:
                self._prefixes.append(self._longer(self._prefixes[tree.parent_list[node]], token))
            above = node > 0 and self._ended[tree.parent_list[node]]
            self._ended.append(above or self._ends(self._prefixes[node]))
        rows = self._frames.rows(self._prefixes[first:])
        rows[rows.sum(-1) == 0.0] = 1.0
        return logarithms(rows)

    def without_ended(self, tree: DraftTree) -> DraftTree:
        """The tree without the children of nodes where the frames end."""
        ended = self._ended + [False] * (len(tree) - len(self._ended))
        if tree.draw == "chosen" or not any(ended):
            return tree
        kept = [0]
        alive = [True] + [False] * (len(tree) - 1)
        for node, parent in enumerate(tree.parent_list[1:], start=1):
            alive[node] = alive[parent] and not ended[parent]
            kept += [node] * alive[node]
        return tree if len(kept) == len(tree) else tree.keep(kept)

    def _ends(self, prefix: Prefix) -> bool:
        going = prefix.chance - prefix.ends
        if going <= 0.0 or not any(prefix.weights):
            return True
        return self.tosses and self._rng.accept(prefix.ends / prefix.chance)

    def _longer(self, prefix: Prefix, token: int) -> Prefix:
        """A token outside the draft vocabulary has no chance: a shape took it to fill up."""
        if token < 0:
            nothing = (0.0,) * len(prefix.weights)
            return Prefix(token, 0.0, 0.0, nothing, nothing)
        return self._frames.extended(prefix, token)

    def _places(self, tree: DraftTree, first: int) -> Sequence[int]:
        """Nodes' tokens as places in the draft vocabulary, -1 for others."""
        known = self._vocabulary.tokens
        tokens = tree.tokens[first:]
        places = np.searchsorted(known, tokens).clip(max=len(known) - 1)
        return np.where(known[places] == tokens, places, -1).tolist()
