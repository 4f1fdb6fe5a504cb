"""Trees of trained drafters, which know a part of the target's vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood.drafters.draft_model import DraftDistributions, ProbsBuffer
from draftwood.drafters.drafter import Drafter, Need
from draftwood.drafters.resources import Resources, needed
from draftwood.heads.ctc import CtcConfig
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.requirements import require_ability
from draftwood.native.logit_rows import LogitRows, Support
from draftwood.native.rows import in_cpp, softmax
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler, Sampling, has_numbers
from draftwood.shapes import BestFirst
from draftwood.shapes.base import grow_sound
from draftwood.shapes.shape import RowsAfter, Shape, takes_logits
from draftwood.tree import DraftTree, Draw

Score = Callable[[DraftTree, int], Float[Tensor, "nodes draft_vocab"]]
"""Logits of the draft vocabulary after the nodes of a tree from one on."""


def working_dtype(target: Model) -> torch.dtype:
    """Choose the type of a drafter's weights: the target's on an accelerator, floats on a CPU."""
    if target.device.type == "cpu":
        return torch.float32
    return target.embeddings_and_head.embed(
        torch.zeros(1, dtype=torch.long, device=target.device)
    ).dtype


def small_tree() -> BestFirst:
    """Make a shape that pays on a CPU, where every node of a pass costs."""
    return BestFirst(depth=3, width=3, size=4)


class DraftVocabulary:
    """The tokens that a drafter drafts, and the target's own output rows for them.

    On the native path the target's head gives the logits, from weights of 8 bits and without a copy
    of them; for 8,000 tokens this takes a fifth of the time of rows in floats. Elsewhere the rows
    are copied once, as they would be gathered for each call.

    Args:
        tokens: ids in the target's vocabulary, ascending.
        target: the model whose output head it is.
        dtype: of the rows.
        rows: of an output head of the drafter's own, in the place of the target's.
    """

    def __init__(
        self,
        tokens: Int[Tensor, " draft_vocab"],
        target: Model,
        dtype: torch.dtype,
        rows: Float[Tensor, "draft_vocab dim"] | None = None,
    ) -> None:
        self.tokens, self.vocab, self.target_head = (
            tokens.to(target.device),
            target.vocab_size,
            target.embeddings_and_head,
        )
        self.rows = rows
        if rows is None and not isinstance(target, NativeModel):
            head = target.embeddings_and_head.weights().head
            self.rows = head[tokens.to(head.device)].to(target.device, dtype)

    def logits(self, states: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows draft_vocab"]:
        """Logits after states that went through the drafter's norm."""
        if self.rows is None:
            return self.target_head.logits(states, self.tokens, normed=True)
        return functional.linear(states, self.rows).float()

    def widened(
        self, logits: Float[Tensor, "rows draft_vocab"]
    ) -> Float[Tensor, "rows {self.vocab}"]:
        """Over the target's whole vocabulary; what the drafter lacks gets minus infinity."""
        return self._spread(logits, -torch.inf)

    def _spread(
        self, rows: Float[Tensor, "rows draft_vocab"], others: float = 0.0
    ) -> Float[Tensor, "rows {self.vocab}"]:
        """Rows over the target's vocabulary, whose other tokens get ``others``."""
        wide = rows.new_full((len(rows), self.vocab), others)
        return wide.index_copy_(1, self.tokens, rows)

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
        if sampler.only_temperature and takes_logits(shape) and self.tokens.device.type == "cpu":
            return self._grow_from_logits(shape, root, score, sampler.temperature, context, rng)

        def expand(tree: DraftTree, first: int) -> Float[Tensor, "nodes draft_vocab"]:
            return sampler.probs(score(self._translated(tree, root), first))

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
            logits = score(tree, first)
            if in_cpp(logits):
                logits = logits.clone() if keeps else logits
                return LogitRows(logits, temperature, self.vocab, support)
            probs = softmax(logits, temperature)
            return self._spread(probs).masked_fill_(probs[:, :1].isnan(), torch.nan)

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

        def expand(tree: DraftTree, first: int) -> Float[Tensor, "nodes vocab"]:
            logits = score(tree, first)
            probs = laws.after(self.widened(logits), tree, first)
            # a grammar may allow none of the draft vocabulary
            return probs.masked_fill_(probs[:, :1].isnan() & has_numbers(logits), 0.0)

        return grow_sound(shape, root, expand, rng, context.max_draft_len)

    def _translated(self, tree: DraftTree, root: int) -> DraftTree:
        """The tree with the target's ids, of one with places in the draft vocabulary."""
        if len(tree) == 1:
            return replace(DraftTree.of([root], [-1], tree.draw), is_broken=tree.is_broken)
        tokens = self.tokens[tree.tokens.to(self.tokens.device)]
        tokens[0] = root
        probs = None if tree.probs is None else self._spread(tree.probs)
        return replace(tree, tokens=tokens, probs=probs)


@dataclass(frozen=True, eq=False)
class HeadDrafter(Drafter):
    """Base of the drafters that grow any shape's tree with a trained head.

    Args:
        trained: head, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"head"})
    uses: ClassVar[frozenset[Need]] = frozenset({"shape"})
    trained: TrainedHead
    target: Model
    shape: Shape = field(default_factory=small_tree)
    vocabulary: DraftVocabulary = field(init=False, repr=False)

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(needed(resources.head), resources.target, resources.shape or small_tree())

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({(shape or small_tree()).draw})


def require_newest_state(config: CtcConfig | MedusaConfig, target: Model, method: str) -> None:
    """Raise ValueError unless a target has the states that a head reads."""
    for ability in ("hidden", "embeddings_and_head"):
        require_ability(target, ability, method)
    reads = config.reads
    if config.sizes.hidden != target.hidden_size or not all(
        0 <= layer <= target.layers for layer in reads
    ):
        raise ValueError(
            f"the drafter reads states of {config.sizes.hidden} entries at layers {list(reads)},"
            f" the target has {target.hidden_size} at layers 0..{target.layers}; take a drafter of"
            " this model"
        )
