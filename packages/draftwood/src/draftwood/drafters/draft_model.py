"""Draft what a smaller model would say."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import ClassVar
from weakref import ref

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.drafters.ahead import BranchingSession, always
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Need,
    VerifiedTree,
    native_tree,
)
from draftwood.drafters.resources import Resources, needed
from draftwood.models.drafting import DraftingModel, DraftTokens
from draftwood.models.model import Model, extend_in_chunks
from draftwood.models.native import NativeModel
from draftwood.models.session import PooledSession
from draftwood.models.shared import SharedPasses
from draftwood.native.drawn_trees import DraftModelText, DrawnTrees
from draftwood.native.logit_rows import LogitRows, Support
from draftwood.native.rows import in_cpp
from draftwood.native.step import PLACES_OF_RUN, NativeDraft, NativeStep
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler, Sampling, has_numbers
from draftwood.shapes import Shape, Widths
from draftwood.shapes.base import RowsAfter, grow_sound
from draftwood.shapes.shape import drawn_shape, takes_logits
from draftwood.tree import UNBOUNDED, DraftTree, Draw

STAND_IN = (
    # read in the place of tokens that a draft model lacks, which are markers; in most vocabularies
    # 0 is one too
    0
)

MOST_LATE = 32
"""Tokens of the text that the library takes in with the root; more come in chunks before."""

BRANCHES = 16
"""Trees whose rows a session that has branches keeps in memory at once."""


@dataclass(frozen=True, eq=False)
class DraftModel(Drafter):
    """A tree that a smaller model drafts, with one batched forward pass per level.

    Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
    arXiv:2302.01318).

    Args:
        model: any model with the target's vocabulary, which may lack or add tokens at its end.
        shape: the tree to grow.
        likeliest: tokens of its draft vocabulary, beside those of the text; 0 for all. The output
            rows of a large vocabulary are a third of what a small model reads.

    Example:
        The draft model writes 3 4 9 after 2, and the target 3 4 5.

        >>> drafter = DraftModel(writing([1, 2, 3, 4, 9]), Widths((1, 1, 1)))
        >>> one_step(drafter, writing([1, 2, 3, 4, 5]), [0, 0, 0, 1, 2])
        OneStep(drafted=[[3, 4, 9]], accepted=[3, 4], then=5)
    """

    name: ClassVar[str] = "draft-model"
    needs: ClassVar[frozenset[Need]] = frozenset({"draft-model"})
    uses: ClassVar[frozenset[Need]] = frozenset({"shape", "head"})  # a head may stand in
    drafts_ahead: ClassVar[bool] = True
    model: Model
    shape: Shape = field(default_factory=Widths)
    likeliest: int = 0

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(needed(resources.draft_model), resources.shape or Widths())

    @cached_property
    def drafting(self) -> DraftingModel:
        """The model as it drafts."""
        return DraftingModel(self.model, self.likeliest)

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or Widths()).draw})

    @staticmethod
    def as_read_by(model: Model, tokens: Sequence[int]) -> list[int]:
        """The tokens as a draft model reads them: what it lacks is read as another token."""
        return [token if token < model.vocab_size else STAND_IN for token in tokens]

    def start(self, request: DraftRequest) -> DraftSession:
        return _DraftModelSession(self, request)


class _DraftModelSession(BranchingSession):
    def __init__(self, config: DraftModel, request: DraftRequest) -> None:
        self.shape, self.rng = config.shape, request.rng
        self.sampler = request.sampler.for_drafting()
        self.vocab = request.target.model.vocab_size
        self.tokens = DraftTokens(config.drafting)
        self.session = request.start(config.drafting.model)
        self.memory = ProbsBuffer(config.shape.nodes, self.vocab)
        self.late: list[int] = []  # in the sequence, not yet in the draft model's cache
        self.first: _DraftModelSession | None = None  # runs the prompt for this one too
        self.go_on: Callable[[], None] = always
        self.newest: Float[np.ndarray, "1 draft_vocab"] | None = None  # logits after the last root
        self.proposed: DraftTree | None = None
        self.ran = 0  # nodes of it whose keys and values the cache has
        self.native_draft = _native_draft(config, self)

    def branch(self, rng: Rng, go_on: Callable[[], None]) -> "_DraftModelSession":
        other = copy(self)
        other.rng, other.go_on = rng, go_on
        other.session, other.late = self.session.fork(), list(self.late)
        other.tokens, other.proposed = self.tokens.copied(), None
        self.memory.kept = BRANCHES  # which is also that of the branches
        return other

    def logits_after(self, tree: DraftTree) -> Float[np.ndarray, "nodes vocab"] | None:
        limit = self.session.model.context_length
        if self.newest is None or (
            limit is not None and self.session.length + 1 + tree.depth > limit
        ):
            return None
        logits = np.concatenate([self.newest, self._below(tree, 1)])
        return over_vocabulary(logits, self.vocab, self.tokens.tokens)

    def _below(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits of the draft vocabulary after the nodes from one on."""
        self.go_on()
        known, hidden = self._known_tree(tree), self.tokens.hidden
        output = self.session.forward(known, first, hidden)
        self.ran = len(tree)
        return self.tokens.logits(output)

    def close(self) -> None:
        self.session.close()

    def follow(self, first: DraftSession) -> None:
        if isinstance(first, _DraftModelSession) and "fork" in self.session.model.abilities:
            self.first = first

    def _copy_prompt(self) -> None:
        """Take over what was run for another request with the same prompt."""
        first, self.first = self.first, None
        if first is not None and first.session.length > 0:
            # beside another thread's pass there may be a root behind the prompt
            first.session.fork(self.session, min(first.session.length, len(self.late)))
            self.late = self.late[self.session.length :]

    def propose(self, root: int, context: Context) -> DraftTree:
        self._copy_prompt()
        self.newest = self.proposed = None
        max_draft_len, limit = context.max_draft_len, self.session.model.context_length
        if limit is not None:  # past its own context a draft model only drafts wildly
            max_draft_len = min(max_draft_len, limit - self.session.length - len(self.late))
        if max_draft_len < 1:
            return DraftTree.of([root], [-1])
        # The newest tokens and the root share a forward pass; the root then serves as the tree's
        # first node.
        self.go_on()
        self.tokens.follow([root])
        late = DraftModel.as_read_by(self.session.model, [*self.late, root])
        output = extend_in_chunks(self.session, late, self.tokens.hidden)
        self.newest = first_logits = self.tokens.logits(output)
        self.session.rewind(1)
        self.late, self.ran = [], 1
        support = self.tokens.support
        laws = DraftDistributions(self.sampler, context, self.vocab, self.memory, support)

        def expand(tree: DraftTree, first: int) -> RowsAfter:
            logits = first_logits if first == 0 else self._below(tree, first)
            return laws.rows_after(logits, tree, first, self.shape)

        self.proposed = grow_sound(self.shape, root, expand, self.rng, max_draft_len)
        return self.proposed

    def update(self, verified: VerifiedTree) -> None:
        self._keep(self._own_path(verified), verified.tokens, self.ran)
        self.tokens.follow(verified.tokens)

    def _own_path(self, verified: VerifiedTree) -> Sequence[int]:
        """Nodes of the proposed tree that became text, in whatever tree they were verified."""
        if (tree := self.proposed) is None:
            return []
        if verified.tree is tree:
            return verified.path
        path = list[int]()
        for token in verified.tokens:
            below = tree.children[path[-1]] if path else (0,)
            found = next((node for node in below if tree.token_list[node] == token), None)
            if found is None:
                break
            path.append(found)
        return path

    def _keep(self, path: Sequence[int], tokens: Sequence[int], ran: int) -> None:
        """Keep nodes of the tree that became text.

        Models of the library give a row the same bits in a tree and behind a text, so that what ran
        need not run again.
        """
        kept = [node for node in path if node < ran] if _native_model(self.session.model) else []
        if kept:
            self.session.commit(kept)
        self.late += tokens[len(kept) :]
        self.proposed = None

    def native(self, context: Context) -> NativeDraft | None:
        """Passes that texts share are run by Python, as is the end of a draft model's context."""
        draft = self.native_draft
        if draft is None or draft.drawn is None or context.shared.rows:
            return None
        self._copy_prompt()
        text, session, limit = draft.drawn.source, self.session, self.session.model.context_length
        assert isinstance(text, DraftModelText)
        assert isinstance(session, PooledSession)
        places = 1 + len(self.late) + draft.most
        if limit is not None and session.length + places > limit:
            return None
        in_a_row = session.has_room(places + PLACES_OF_RUN)
        late, self.newest = DraftModel.as_read_by(session.model, self.late), None
        if len(late) > MOST_LATE:
            extend_in_chunks(session, late)
            self.late = late = []
        blocks = session.reserve(1 + len(late) + draft.most + in_a_row * PLACES_OF_RUN)
        text.prepare(session.slot, blocks, session.length, late)
        return draft if in_a_row else replace(draft, in_a_row=1)

    def commit_native(self, step: NativeStep) -> DraftTree:
        draft = self.native_draft
        assert draft is not None
        assert draft.drawn is not None
        text, session = draft.drawn.source, self.session
        assert isinstance(text, DraftModelText)
        assert isinstance(session, PooledSession)
        # all steps of a row are made by now
        session.went_on(text.length - session.length, 0)
        self.late, self.proposed = text.late, None
        return native_tree(step, draft)

    def _known_tree(self, tree: DraftTree) -> DraftTree:
        """The tree as the draft model reads it.

        A token that it lacks may fill a tree up without any probability, or a grammar may ask for
        one.
        """
        known = self.session.model.vocab_size
        return (
            tree
            if known >= self.vocab
            else replace(tree, tokens=np.where(tree.tokens < known, tree.tokens, STAND_IN))
        )


def _native_model(model: Model) -> NativeModel | None:
    """The model that the library runs, behind passes that calls share too."""
    inner = model.inner if isinstance(model, SharedPasses) else model
    return inner if isinstance(inner, NativeModel) else None


def _native_draft(config: DraftModel, session: _DraftModelSession) -> NativeDraft | None:
    """Let the library draw the trees; None where Python does."""
    model, shape, sampler = _native_model(session.session.model), config.shape, session.sampler
    drawn = drawn_shape(shape)
    if model is None or drawn is None or session.tokens.support is not None:
        return None
    if not isinstance(sampler, Sampling):
        return None
    shape = model.pool.shape
    text = DraftModelText(model.structure, shape, model.layers, session.vocab, STAND_IN)
    trees = DrawnTrees(text, drawn, sampler.temperature, session.rng.noise)
    return NativeDraft(trees.costs, drawn=trees, in_a_row=UNBOUNDED)


class ProbsBuffer:
    """Memory for the rows of one tree after the other.

    What nothing refers to any more is given out again: the system hands out fresh memory page by
    page, which takes longer than to fill it with probabilities. Trees that are kept keep their
    memory.

    Args:
        rows: of a tree.
        vocab: entries of a row.

    Attributes:
        kept: trees whose memory stays; at least one for the newest, one for the next.
    """

    def __init__(self, rows: int, vocab: int) -> None:
        self.shape, self.kept = (max(rows, 1), vocab), 2
        # with the array that all users of a block are views of
        self._blocks: list[tuple[bytearray, ref[np.ndarray]]] = []

    def take(self) -> Float[np.ndarray, "rows vocab"]:
        """Rows that hold anything and that no array in use shares."""
        count = prod(self.shape)
        place = next((i for i, (_, user) in enumerate(self._blocks) if user() is None), None)
        block = bytearray(count * 4) if place is None else self._blocks.pop(place)[0]
        rows = np.frombuffer(block, np.float32)
        self._blocks = [*self._blocks[1 - self.kept :], (block, ref(rows))]
        return rows.reshape(self.shape)


class DraftDistributions:
    """The distributions after the nodes of one tree, over the target's vocabulary.

    Each node's context is its own path. The rows lie one after the other in memory, so that the
    tree keeps them without a copy. Models of one family pad their vocabularies to different sizes;
    a token that one of them lacks has probability 0.

    Args:
        sampler: how the draft's logits become probabilities.
        context: the tokens before the root.
        vocab: size of the target's vocabulary.
        memory: for the rows, where they are computed in place; None takes new memory.
        support: the tokens of a row's entries; None where entry i belongs to token i.
    """

    def __init__(
        self,
        sampler: Sampler,
        context: Context,
        vocab: int,
        memory: ProbsBuffer | None = None,
        support: Support | None = None,
    ) -> None:
        self.sampler, self.context, self.vocab, self.memory = sampler, context, vocab, memory
        self.support = support
        self.free: Float[np.ndarray, "nodes vocab"] | None = None  # rows of this tree's memory
        # the temperature, where sampling does nothing else
        self.only_temperature: float | None = None
        if type(sampler) is Sampling and sampler.only_temperature:
            self.only_temperature = sampler.temperature

    def rows_after(
        self,
        logits: Float[np.ndarray, "nodes draft_vocab"],
        tree: DraftTree,
        first: int,
        shape: Shape,
    ) -> RowsAfter:
        """The same, as logits where sampler and shape allow it."""
        logits = as_array(logits)
        known = logits if logits.shape[1] <= self.vocab else logits[:, : self.vocab]
        fits = self.support is None or self.support.highest < self.vocab
        if self.only_temperature and fits and takes_logits(shape) and in_cpp(known):
            return LogitRows(known, self.only_temperature, self.vocab, self.support)
        return self.after(logits, tree, first)

    def after(
        self, logits: Float[np.ndarray, "nodes draft_vocab"], tree: DraftTree, first: int
    ) -> Float[np.ndarray, "nodes vocab"]:
        """The distributions after the nodes from ``first`` on, given the draft's logits there."""
        contexts: Sequence[Context] = ()
        if self.sampler.reads_context:
            paths = [[0, *tree.path_to(node)] for node in range(first, len(tree))]
            contexts = [
                self.context.extended([tree.token_list[node] for node in path]) for path in paths
            ]
        tokens = None if self.support is None else self.support.tokens
        known = logits.shape[1] if tokens is None else 0
        # before sampling, which may concern the tokens that it lacks
        logits = over_vocabulary(as_array(logits), self.vocab, tokens)
        if known < self.vocab:
            probs = self.sampler.probs(logits, contexts)
            # a grammar may allow none but these: nothing is drafted then
            return without_forbidden(probs, logits)
        memory, sampler = self.memory, self.sampler
        if memory is None or not isinstance(sampler, Sampling) or sampler.cuts:
            return sampler.probs(logits, contexts)
        free = memory.take() if self.free is None else self.free
        out, self.free = free[: len(logits)], free[len(logits) :]
        return sampler.probs(logits, contexts, out if len(out) == len(logits) else None)


def without_forbidden(
    probs: Float[np.ndarray, "rows vocab"], logits: Float[np.ndarray, "rows _"]
) -> Float[np.ndarray, "rows vocab"]:
    """Rows with nothing to draw where a sampler forbade all that the drafter knows.

    Rows of broken logits stay NaN.
    """
    odd = np.isnan(probs[:, 0])
    if odd.any():
        probs[odd & has_numbers(logits)[:, 0]] = 0.0
    return probs


def over_vocabulary(
    logits: Float[np.ndarray, "rows draft_vocab"],
    vocab: int,
    tokens: Int[np.ndarray, " draft_vocab"] | None,
) -> Float[np.ndarray, "rows {vocab}"]:
    """Logits over the target's vocabulary; what the draft vocabulary lacks gets minus infinity.

    Args:
        tokens: of the entries; None where entry i belongs to token i.
    """
    if tokens is None and logits.shape[1] == vocab:
        return logits
    entries = np.arange(logits.shape[1]) if tokens is None else tokens
    known = entries < vocab
    wide = np.full((len(logits), vocab), -np.inf, logits.dtype)
    wide[:, entries[known]] = logits[:, known]
    return wide
