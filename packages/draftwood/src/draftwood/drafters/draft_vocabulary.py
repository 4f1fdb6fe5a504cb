"""Trees of trained drafters, which know a part of the target's vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.drafters.draft_model import DraftDistributions, ProbsBuffer, without_forbidden
from draftwood.drafters.drafter import Drafter, Need
from draftwood.drafters.resources import Resources, needed
from draftwood.heads.kinds import Config, require_kind
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.native.logit_rows import LogitRows, Support
from draftwood.native.rows import in_cpp, softmax
from draftwood.optional import backend
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler, Sampling
from draftwood.shapes import BestFirst
from draftwood.shapes.base import RowsAfter, grow_sound
from draftwood.shapes.shape import Shape, takes_logits
from draftwood.tree import DraftTree, Draw

if TYPE_CHECKING:
    from draftwood.backend import Backend, HeadOnDevice

Score = Callable[[DraftTree, int], Any]
"""Logits of the draft vocabulary after the nodes of a tree from one on, as array or tensor."""


def small_tree() -> BestFirst:
    """Make a shape that pays on a CPU, where every node of a pass costs."""
    return BestFirst(depth=3, width=3, size=4)


class DraftVocabulary:
    """The tokens that a drafter drafts, and rows over them in the target's vocabulary.

    Args:
        tokens: ids in the target's vocabulary, ascending.
        vocab: size of that.
    """

    def __init__(self, tokens: Int[np.ndarray, " draft_vocab"], vocab: int) -> None:
        self.tokens, self.vocab = tokens, vocab

    def widened(
        self, logits: Float[np.ndarray, "rows draft_vocab"]
    ) -> Float[np.ndarray, "rows {self.vocab}"]:
        """Over the target's whole vocabulary; what the drafter lacks gets minus infinity."""
        return self._spread(logits, -np.inf)

    def _spread(
        self, rows: Float[np.ndarray, "rows draft_vocab"], others: float = 0.0
    ) -> Float[np.ndarray, "rows {self.vocab}"]:
        """Rows over the target's vocabulary, whose other tokens get ``others``."""
        wide = np.full((len(rows), self.vocab), others, rows.dtype)
        wide[:, self.tokens] = rows
        return wide

    def grow(
        self,
        shape: Shape,
        root: int,
        score: Score,
        sampler: Sampler,
        context: Context,
        rng: Rng,
    ) -> DraftTree:
        """A tree below ``root``, with the target's ids and rows over its whole vocabulary.

        Where the sampler looks at single logits alone, the tree is grown in the draft vocabulary
        and translated at its end: sorting and drawing then cost a sixth.

        Args:
            score: reads trees with the target's ids.
            sampler: how the drafter's logits become probabilities.
            context: the tokens before the root, and the room for the tree.
        """
        if type(sampler) is not Sampling or sampler.reads_context or sampler.logit_bias:
            return self._grow_wide(shape, root, score, sampler, context, rng)
        if sampler.only_temperature and takes_logits(shape):
            return self._grow_from_logits(shape, root, score, sampler.temperature, context, rng)

        def expand(tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
            return sampler.probs(as_array(score(self._translated(tree, root), first)))

        return self._translated(grow_sound(shape, 0, expand, rng, context.max_draft_len), root)

    def _grow_from_logits(
        self,
        shape: Shape,
        root: int,
        score: Score,
        temperature: float,
        context: Context,
        rng: Rng,
    ) -> DraftTree:
        """Grow the tree without rows of probabilities.

        A head may overwrite its logits with the next call, so those that a verifier will read are
        copied.
        """
        support, keeps = self._support, shape.draw != "chosen"

        def expand(tree: DraftTree, first: int) -> RowsAfter:
            logits = as_array(score(tree, first))
            if in_cpp(logits):
                logits = logits.copy() if keeps else logits
                return LogitRows(logits, temperature, self.vocab, support)
            probs = softmax(logits, temperature)
            wide = self._spread(probs)
            wide[np.isnan(probs[:, 0])] = np.nan
            return wide

        return grow_sound(shape, root, expand, rng, context.max_draft_len)

    @cached_property
    def _support(self) -> Support:
        return Support(self.tokens)

    def _grow_wide(
        self,
        shape: Shape,
        root: int,
        score: Score,
        sampler: Sampler,
        context: Context,
        rng: Rng,
    ) -> DraftTree:
        """Grow the tree for samplers that know tokens by their ids."""
        laws = DraftDistributions(
            sampler, context, self.vocab, ProbsBuffer(shape.nodes, self.vocab)
        )

        def expand(tree: DraftTree, first: int) -> Float[np.ndarray, "nodes vocab"]:
            logits = as_array(score(tree, first))
            probs = laws.after(self.widened(logits), tree, first)
            # a grammar may allow none of the draft vocabulary
            return without_forbidden(probs, logits)

        return grow_sound(shape, root, expand, rng, context.max_draft_len)

    def _translated(self, tree: DraftTree, root: int) -> DraftTree:
        """The tree with the target's ids, of one with places in the draft vocabulary."""
        if len(tree) == 1:
            return replace(DraftTree.of([root], [-1], tree.draw), is_broken=tree.is_broken)
        tokens = self.tokens[tree.tokens]
        tokens[0] = root
        probs = None if tree.probs is None else self._spread(tree.probs)
        return replace(tree, tokens=tokens, probs=probs)


@dataclass(frozen=True, eq=False)
class TrainedDrafter(Drafter):
    """Base of the drafters that draft with a trained head.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
    uses: ClassVar[frozenset[Need]] = frozenset({"shape"})
    trained: TrainedHead
    target: Model

    @cached_property
    def vocabulary(self) -> DraftVocabulary:
        """The tokens that the head drafts."""
        return DraftVocabulary(as_array(self.trained.draft_tokens), self.target.vocab_size)

    @property
    def reads(self) -> tuple[int, ...]:
        """The target's layers whose inputs the head reads."""
        return self.trained.config.reads

    @property
    def runner(self) -> "Backend":
        """The package that runs the head in PyTorch; raises ImportError without it."""
        return backend(f"method {self.name!r} with this head and model")

    @cached_property
    def placed(self) -> "HeadOnDevice":
        """The head in PyTorch, on the target's device; made when it is first asked for.

        Raises:
            ImportError: without PyTorch.
        """
        return self.runner.placed(self.trained, self.target)

    def fitting(self, wanted: type[Config]) -> Config:
        """The head's settings, which must be of this kind and fit the target.

        Raises:
            ValueError: for a head of another kind or for another target, and for a target without
                the states that the head reads, an embedding or an output head.
        """
        config, target = require_kind(self.trained.config, wanted, self.name), self.target
        if config.reads:
            require_ability(target, "hidden", self.name)
        require_ability(target, "embeddings_and_head", self.name)
        known = all(0 <= layer <= target.layers for layer in config.reads)
        if config.sizes.hidden != target.hidden_size or not known:
            at = f" at layers {list(config.reads)}" if config.reads else ""
            raise ValueError(
                f"the drafter reads {'states' if at else 'embeddings'} of {config.sizes.hidden}"
                f" entries{at}, the target has {target.hidden_size} at layers 0..{target.layers};"
                " take a drafter of this model"
            )
        return config

    def require_runtime(self, native: object) -> None:
        """Bring the head to PyTorch where the library does not run it.

        Raises:
            ImportError: without PyTorch.
        """
        if native is None:
            _ = self.placed


@dataclass(frozen=True, eq=False)
class HeadDrafter(TrainedDrafter):
    """Base of the drafters that grow any shape's tree with a trained head.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.
    """

    shape: Shape = field(default_factory=small_tree)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(needed(resources.head), resources.target, resources.shape or small_tree())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or small_tree()).draw})
