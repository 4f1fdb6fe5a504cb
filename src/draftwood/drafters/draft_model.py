"""Guess what a smaller model would say."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.drafters.base import Accepted, DraftSession, Request
from draftwood.models.base import Model, extend_in_chunks
from draftwood.sampling import Context, Sampler
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class DraftModel:
    """A tree of a smaller model's guesses, one batched run of it per level.

    Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318).

    Args:
        model: any model with the target's vocabulary.
        shape: the tree to grow.
    """

    name: ClassVar[str] = "draft-model"
    needs_logits: ClassVar[bool] = False
    needs_hidden: ClassVar[tuple[int, ...]] = ()
    model: Model
    shape: Shape = field(default_factory=Widths)

    def start(self, request: Request) -> DraftSession:
        return _DraftModelSession(self, request)


class _DraftModelSession:
    def __init__(self, config: DraftModel, request: Request) -> None:
        self.shape, self.rng = config.shape, request.rng
        self.sampler = request.sampler.for_drafting()
        self.vocab = request.target.model.vocab_size
        self.session = config.model.start()
        self.late: list[int] = []  # in the sequence, not yet in the draft model's cache

    def propose(self, root: int, context: Context) -> DraftTree:
        limit = self.session.model.context_length
        if limit is not None and self.session.length + len(self.late) + 1 + self.shape.nodes > limit:
            return DraftTree.of([root], [-1])  # past its own context a draft model only guesses wildly
        # The newest tokens and the root run together; the root then serves as the tree's first node.
        first_logits = extend_in_chunks(self.session, [*self.late, root]).logits
        self.session.rewind(1)
        self.late = []

        def expand(tree: DraftTree, first: int) -> Float[Tensor, "nodes vocab"]:
            logits = first_logits if first == 0 else self.session.forward(tree, first).logits
            return draft_probs(logits, self.sampler, self.vocab, tree, first, context)

        return self.shape.grow(root, expand, self.rng)

    def update(self, accepted: Accepted) -> None:
        self.late += accepted.tokens


def draft_probs(
    logits: Float[Tensor, "nodes draft_vocab"],
    sampler: Sampler,
    vocab: int,
    tree: DraftTree,
    first: int,
    context: Context,
) -> Float[Tensor, "nodes vocab"]:
    """The law a drafter draws from, over the target's vocabulary, with each node's own path as its context.

    Models of one family pad their vocabularies to different sizes; tokens one of them lacks are never drafted.
    """
    contexts: Sequence[Context] = ()
    if sampler.reads_context:
        paths = [[0, *tree.path_to(node)] for node in range(first, len(tree))]
        contexts = [context.extended([tree.token_list[node] for node in path]) for path in paths]
    probs = sampler.probs(logits[:, :vocab], contexts)
    missing = vocab - probs.shape[-1]
    return torch.nn.functional.pad(probs, (0, missing)) if missing else probs
