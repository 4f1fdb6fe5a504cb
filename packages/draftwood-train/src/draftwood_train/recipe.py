"""Protocol between the loop and a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.native.formats import HeadSizes

TreePath = tuple[int, ...]
"""A node of a tree: its rank among its parent's children, after those of the nodes above it."""


@dataclass(frozen=True, eq=False)
class TargetWeights:
    """Facts about the target that a recipe may use: sizes, frozen embedding and output head.

    Attributes:
        layers: decoder layers.
        sizes: of these.
        embedding: input embedding of each token.
        head: rows of the output head of the draft vocabulary, times the factor of its logits.
        draft_tokens: the draft vocabulary: ids in the target's, ascending.
        draft_index: place in the draft vocabulary of each token, -1 where it is not part of it.
        last_layers: weights of its last decoder layers by their names in Transformers, at least as
            many as a recipe's ``newest`` says that it starts from, or of all of them for one that
            says ``runs_target``; empty if unknown.
        final_norm: weight of the norm before its output head; None where it has none.
        other_keys: of these layers, what their keys have that rotated, biased and normed products
            have not; None for nothing.
    """

    layers: int
    sizes: HeadSizes
    embedding: Float[Tensor, "vocab dim"]
    head: Float[Tensor, "draft_vocab dim"]
    draft_tokens: Int[Tensor, " draft_vocab"]
    draft_index: Int[Tensor, " vocab"]
    last_layers: Sequence[Mapping[str, Tensor]] = ()
    final_norm: Float[Tensor, " dim"] | None = None
    other_keys: Sequence[str | None] = ()


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Texts side by side in rows of one length.

    Attributes:
        tokens: 0 where a row has no text.
        segments: number of the text within the row, -1 where there is none.
        positions: of a token within its text.
        is_answer: whether a token is part of an answer; losses look at these alone.
        is_greedy: whether the answer was written greedily; such answers alone tell which tokens
            are right.
        states: the layers that the recipe reads, in its order.
        final: the target's state after the final norm.
        log_normalizer: of the target's logits.
    """

    tokens: Int[Tensor, "rows places"]
    segments: Int[Tensor, "rows places"]
    positions: Int[Tensor, "rows places"]
    is_answer: Bool[Tensor, "rows places"]
    is_greedy: Bool[Tensor, "rows places"]
    states: Float[Tensor, "rows places reads dim"]
    final: Float[Tensor, "rows places dim"]
    log_normalizer: Float[Tensor, "rows places"]


@dataclass(frozen=True, eq=False)
class Judged:
    """Counts over held-out places, which add up over batches.

    Attributes:
        places: number of judged places.
        figures: sums over these places, by name, or over as many as ``counts`` tells.
        paths: by name of a figure, the places at which each node of a tree is true: from all of
            them follow the tokens that a step emits with the best tree.
        counts: by name of a figure, the places that it is summed over where they are others.

    ``block_efficiency`` is among one or the other: tokens that a step is expected to emit there.
    """

    places: int
    figures: Mapping[str, float]
    paths: Mapping[str, Mapping[TreePath, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class DrafterRecipe(Protocol):
    """Training of one published drafter: network and losses. Its fields are options of the command.

    A frozen dataclass in a file of ``training/recipes``.
    """

    name: ClassVar[str]
    source: ClassVar[str]

    def reads(self, layers: int) -> tuple[int, ...]:
        """Layers whose inputs the drafter reads, of a target with ``layers`` layers."""
        ...

    def build(self, target: TargetWeights) -> nn.Module:
        """A new drafter, with ``config`` as ``draftwood.heads.folder`` keeps it."""
        ...

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The mean loss, and figures for the log.

        Args:
            progress: share of the training that is done, for recipes that change over time.
        """
        ...

    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Judge a head on held-out rows, from the stored states alone.

        Places are those of greedy answers; ``judging.all_counted`` lets all answers count.
        """
        ...


def require_words(recipe: object) -> None:
    """Raise ValueError for a setting that is none of the words that its type lists."""
    for name, kind in get_type_hints(type(recipe)).items():
        value = getattr(recipe, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise ValueError(f"{name} is one of {', '.join(get_args(kind))}, not {value!r}")
