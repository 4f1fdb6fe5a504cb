"""One sequence's part in a forward pass, the same for every way to run a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood.models.cache import CacheSlice
from draftwood.models.cache.blocks import PLACES
from draftwood.models.model import ALL_LAYERS, Keep, Layers, StepInput
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class PackedInput:
    """One sequence's share of a forward pass: its tokens, positions and places in the cache.

    It also says what each token sees.

    Attributes:
        before: committed tokens, at positions from 0 on; every node sees them.
        sees: which nodes of the tree after them each node sees, itself included.
        tree_positions: of the nodes of the tree.
        layers: the layers to run.
        keep: whose logits are wanted.
        hidden: layers whose hidden states are wanted.
        is_prompt: whether the tokens are appended for good.
        stream: with what nodes that stopped before go on; None where they begin.
        tree: that the nodes are of; None for prompts.
    """

    tokens: Int[Tensor, " nodes"]
    positions: Int[Tensor, " nodes"]
    place: CacheSlice
    before: int
    sees: Bool[Tensor, "nodes tree"]
    tree_positions: Int[Tensor, " tree"]
    layers: Layers = ALL_LAYERS
    keep: Keep = "all"
    hidden: tuple[int, ...] = ()
    is_prompt: bool = False
    stream: Float[Tensor, "nodes dim"] | None = None
    tree: DraftTree | None = None

    @classmethod
    def of_prompt(
        cls,
        slot: int,
        start: int,
        tokens: Sequence[int],
        keep: Keep,
        hidden: tuple[int, ...] = (),
    ) -> "PackedInput":
        """Tokens that are appended to the first ``start`` of a slot."""
        positions = torch.arange(start, start + len(tokens))
        return cls(
            tokens=torch.tensor(tokens),
            positions=positions,
            place=CacheSlice(slot, start, len(tokens)),
            before=start,
            sees=positions[None] <= positions[:, None],
            tree_positions=positions,
            keep=keep,
            hidden=hidden,
            is_prompt=True,
        )

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

    def within(self, window: int | None) -> Bool[Tensor, "nodes width"]:
        """Mask of the cache for each node if attention reaches back ``window`` positions.

        The node's own position is one of them.
        """
        sees = functional.pad(self.sees, (self.before, 0), value=True)
        sees[:, self.unread.start : self.unread.stop] = False
        if window is None:
            return sees
        before = torch.arange(self.before, device=self.positions.device)
        return sees & (
            torch.cat([before, self.tree_positions])[None] > self.positions[:, None] - window
        )

    def padded(self, rows: int) -> "PackedInput":
        """The same with so many copies of the last row after it, which nothing sees."""
        tokens, positions, tree_positions = (
            torch.cat([values, values[-1:].expand(rows)])
            for values in (self.tokens, self.positions, self.tree_positions)
        )
        sees = functional.pad(torch.cat([self.sees, self.sees[-1:].expand(rows, -1)]), (0, rows))
        place = replace(self.place, count=self.place.count + rows)
        stream = self.stream
        if stream is not None:
            stream = torch.cat([stream, stream[-1:].expand(rows, -1)])
        return replace(
            self,
            stream=stream,
            tokens=tokens,
            positions=positions,
            place=place,
            sees=sees,
            tree_positions=tree_positions,
        )


@dataclass(frozen=True, eq=False)
class PackedStep:
    """One sequence's share of a forward pass that the library drafts, runs and verifies itself.

    Attributes:
        place: for the largest tree.
        step: what makes it.
    """

    place: CacheSlice
    step: StepInput
    layers: Layers = ALL_LAYERS

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose hidden states are handed out."""
        return self.step.hidden


Packed = PackedInput | PackedStep


@dataclass(frozen=True, eq=False)
class Stopped:
    """Nodes of a tree that stopped between two layers, and with what."""

    tree: DraftTree
    states: Float[Tensor, "nodes dim"]

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
