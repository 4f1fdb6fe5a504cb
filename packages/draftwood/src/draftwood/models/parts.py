"""One sequence's part in a forward pass, the same for every way to run a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from draftwood.models.cache.places import PLACES, CacheSlice
from draftwood.models.model import ALL_LAYERS, Keep, Layers, RowAdapter, StepInput
from draftwood.tree import DraftTree

A = TypeVar("A")  # arrays, or tensors in the models of PyTorch


@dataclass(frozen=True, eq=False)
class SequenceInput(Generic[A]):
    """One sequence's share of a forward pass: its tokens, positions and places in the cache.

    It also says what each token sees.

    Attributes:
        tokens, positions: [nodes].
        before: committed tokens, at positions from 0 on; every node sees them.
        sees: [nodes tree], which nodes of the tree after them each node sees, itself included.
        tree_positions: [tree], of its nodes.
        layers: the layers to run.
        keep: whose logits are wanted.
        hidden: layers whose hidden states are wanted.
        is_prompt: whether the tokens are appended for good.
        has_own_mask: whether a node may see any other, later ones too, and windows count from its
            position; else its text ends with itself.
        stream: [nodes dim], with what nodes that stopped before go on; None where they begin.
        tree: that the nodes are of; None for prompts.
        embeddings: [nodes dim], read in the place of the tokens' own, which then mean nothing.
        adapter, adapted: what acts on the last nodes, and the number of its vector that each of
            these reads.
    """

    tokens: A
    positions: A
    place: CacheSlice
    before: int
    sees: A
    tree_positions: A
    layers: Layers = ALL_LAYERS
    keep: Keep = "all"
    hidden: tuple[int, ...] = ()
    is_prompt: bool = False
    has_own_mask: bool = False
    stream: A | None = None
    tree: DraftTree | None = None
    embeddings: A | None = None
    adapter: RowAdapter | None = None
    adapted: tuple[int, ...] = ()

    @property
    def unread(self) -> range:
        """Places of the prefix that a window leaves out, in whole blocks."""
        if self.layers.window is None:
            return range(0)
        first, newest = self.layers.window
        from_, to = -(-first // PLACES) * PLACES, (self.before - newest) // PLACES * PLACES
        return range(from_, max(from_, to))

    @property
    def wanted(self) -> int:
        """Rows of logits, of the last tokens."""
        return {"all": self.place.count, "last": 1, "none": 0}[self.keep]


class PackedInput(SequenceInput[np.ndarray]):
    """One sequence's share of a forward pass, in arrays on the host."""

    @classmethod
    def of_prompt(
        cls,
        slot: int,
        start: int,
        tokens: Sequence[int],
        keep: Keep,
        hidden: tuple[int, ...] = (),
        embeddings: Any = None,
    ) -> "PackedInput":
        """Tokens, or vectors, that are appended to the first ``start`` of a slot."""
        tokens = tokens if embeddings is None else [0] * len(embeddings)
        positions = np.arange(start, start + len(tokens))
        return cls(
            tokens=np.array(tokens, np.int64),
            positions=positions,
            place=CacheSlice(slot, start, len(tokens), is_text=True),
            before=start,
            sees=positions[None] <= positions[:, None],
            tree_positions=positions,
            keep=keep,
            hidden=hidden,
            is_prompt=True,
            embeddings=embeddings,
        )


@dataclass(frozen=True, eq=False)
class PackedStep:
    """One sequence's share of a forward pass that the library drafts, runs and verifies itself.

    Attributes:
        place: for the largest tree; of steps in a row for all of them.
        step: what makes it.
    """

    place: CacheSlice
    step: StepInput
    layers: Layers = ALL_LAYERS

    @property
    def before(self) -> int:
        """Committed tokens."""
        return self.place.start

    @property
    def rows(self) -> int:
        """Nodes of the largest tree."""
        return 1 + self.step.most

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose hidden states are handed out."""
        return self.step.hidden


Packed = PackedInput | PackedStep


@dataclass(frozen=True, eq=False)
class Stopped:
    """Nodes of a tree that stopped between two layers, and their states [nodes dim]."""

    tree: DraftTree
    states: Any

    def shared_with(self, tree: DraftTree) -> int:
        """Count the first nodes of a tree that are these."""
        count = min(len(self.states), len(tree))
        pairs = ((self.tree.tokens, tree.tokens), (self.tree.parents, tree.parents))
        alike = all((own[:count] == other[:count]).all() for own, other in pairs)
        return count if alike else 0

    def of(self, nodes: Sequence[int]) -> "Stopped":
        """Some of them, in growing order; raises ValueError where one lacks its parent."""
        tree = DraftTree(self.tree.tokens, self.tree.parents)
        return Stopped(tree.keep(nodes), self.states[list(nodes)])
