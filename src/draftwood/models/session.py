"""One sequence in a pool of caches, the same for every way to run a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from draftwood.interfaces.model import (
    ALL_LAYERS,
    ForwardInput,
    InProcess,
    Keep,
    Layers,
    Model,
    ModelSession,
    Output,
    PassInput,
    PromptInput,
    StepInput,
)
from draftwood.models.blocks import BlockPool
from draftwood.models.cache import CachePool, CacheSlice
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
    def wanted(self) -> int:
        """Rows of logits, of the last tokens."""
        return {"all": self.place.count, "last": 1, "none": 0}[self.keep]

    def within(self, window: int | None) -> Bool[Tensor, "nodes width"]:
        """What each node sees of the cache if attention reaches back ``window`` positions.

        The node's own position is one of them.
        """
        sees = functional.pad(self.sees, (self.before, 0), value=True)
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
        return replace(
            self,
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


@runtime_checkable
class PooledModel(Model, Protocol):
    """A model whose sequences live in the slots of one pool."""

    @property
    def pool(self) -> CachePool | BlockPool: ...

    def run(self, parts: Sequence[Packed]) -> list[Any]:
        """Run the parts of several sequences; write their keys and values to the pool."""
        ...

    def check(self, layers: Layers) -> None:
        """Raise ValueError unless this model can run these layers."""
        ...


class PooledSession(InProcess):
    """One sequence: a slot of the model's cache and the number of tokens committed there.

    Sessions of one model may be used by several threads, each by one at a time.
    """

    def __init__(self, model: PooledModel) -> None:
        self.model = model
        self._length = 0
        self._ran = 0  # nodes after the committed tokens whose keys and values are in the cache
        self._layers = ALL_LAYERS  # which these nodes ran through
        self._closed = False
        self.slot = model.pool.acquire(self)

    @property
    def length(self) -> int:
        return self._length

    def extend(
        self, tokens: Sequence[int], keep: Keep = "all", hidden: Sequence[int] = ()
    ) -> Output:
        return forward(self.model, [PromptInput(self, tokens, keep, tuple(hidden))])[0]

    def chunk(self, tokens: Sequence[int], keep: Keep, hidden: Sequence[int]) -> PackedInput:
        """This sequence's share of a forward pass that appends tokens to it."""
        self._require_open("extend")
        if len(tokens) == 0:
            raise ValueError("extend needs at least one token")
        return PackedInput.of_prompt(self.slot, self.length, tokens, keep, tuple(hidden))

    def adopt(self, layers: Sequence[tuple[Tensor, Tensor]], length: int) -> None:
        """Become a sequence of ``length`` tokens that was computed elsewhere.

        Args:
            layers: keys and values of each layer, each [heads tokens dim]: of all tokens, or of the
                newest where a window hides the others.
        """
        self._require_open("adopt")
        pool = self.model.pool
        with pool.lock:
            pool.cover([CacheSlice(self.slot, 0, length)])
            for index, (keys, values) in enumerate(layers):
                pool.write(self.slot, index, keys, values, length)
        self._length, self._ran = length, 0

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> Output:
        return forward(self.model, [ForwardInput(self, tree, first, tuple(hidden))])[0]

    def part(
        self,
        tree: DraftTree,
        first: int,
        layers: Layers = ALL_LAYERS,
        keep: Keep = "all",
        hidden: Sequence[int] = (),
    ) -> PackedInput:
        """This sequence's share of a forward pass over ``tree`` from node ``first`` on."""
        self._require_open("forward")
        self.model.check(layers)
        ran = self._ran_through(layers)
        if first > ran:
            raise ValueError(
                f"nodes before {first} must be run first; {ran} were run since the last commit"
                + ("" if layers == self._layers else " through these layers")
            )
        positions = self.length + tree.depths
        return PackedInput(
            tokens=tree.tokens[first:],
            positions=positions[first:],
            place=CacheSlice(self.slot, self.length + first, len(tree) - first),
            before=self.length,
            sees=tree.ancestors[first:],
            tree_positions=positions,
            layers=layers,
            keep=keep,
            hidden=tuple(hidden),
        )

    def take(self, part: Packed) -> None:
        """Go on behind a part of this sequence that was run."""
        if isinstance(part, PackedStep):
            self._ran, self._layers = part.place.count, ALL_LAYERS
        elif part.is_prompt:
            self._length, self._ran = self._length + part.place.count, 0
        else:
            self._ran, self._layers = len(part.tree_positions), part.layers

    def spoil(self) -> None:
        """A pass failed in its midst: what nodes had in the cache may be gone."""
        self._ran = 0

    def step(self, given: StepInput) -> PackedStep:
        """This sequence's share of a forward pass that the library drafts itself."""
        self._require_open("forward")
        return PackedStep(CacheSlice(self.slot, self._length, 1 + given.most), given)

    def place_nodes(self, count: int) -> CacheSlice:
        """Where a tree of so many nodes belongs, for a caller who runs it through all layers and
        writes its keys and values there. They count as run.
        """
        self._require_open("place_nodes")
        self._ran, self._layers = count, ALL_LAYERS
        return CacheSlice(self.slot, self.length, count)

    def commit(self, path: Sequence[int]) -> None:
        self._require_open("commit")
        ran = self._ran_through(ALL_LAYERS)
        if path and max(path) >= ran:
            raise ValueError(
                f"node {max(path)} cannot be kept: only {ran} nodes were run through all layers"
            )
        self.model.pool.keep(self.slot, self._length, path)
        self._length += len(path)
        self._ran = 0

    def rewind(self, count: int) -> None:
        self._require_open("rewind")
        if not 0 <= count <= self._length:
            raise ValueError(f"cannot take back {count} of {self._length} tokens")
        self._length -= count
        self._ran, self._layers = count, ALL_LAYERS

    def wants(self, count: int) -> int:
        """Blocks that so many further tokens or nodes take; 0 where the cache has none."""
        self._require_open("wants")
        return self.model.pool.blocks_wanted(self.slot, self._length, count) if count else 0

    def begin(self, blocks: Sequence[int], length: int) -> None:
        """Become a sequence of ``length`` tokens whose blocks of the cache somebody holds; the
        lock is the caller's.
        """
        pool = self.model.pool
        assert isinstance(pool, BlockPool)
        pool.begin(self.slot, blocks)
        self._length, self._ran = length, 0

    def clear(self) -> None:
        self._require_open("clear")
        pool = self.model.pool
        if isinstance(pool, BlockPool):
            with pool.lock:
                pool.begin(self.slot, ())
        self._length = self._ran = 0

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> "PooledSession":
        self._require_open("fork")
        length = self._length if length is None else length
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot fork {length} of {self._length} tokens")
        fork = type(self)(self.model) if into is None else into
        if not isinstance(fork, PooledSession) or fork.model is not self.model or fork._length:
            raise ValueError("a fork goes into an empty session of the same model")
        self.model.pool.copy(self.slot, fork.slot, length)
        fork._length, fork._ran = length, 0
        return fork

    def close(self) -> None:
        self._closed = True
        self.model.pool.release(self)

    def _ran_through(self, layers: Layers) -> int:
        """How many nodes after the committed tokens ran through just these layers."""
        return self._ran if layers == self._layers else 0

    def _require_open(self, act: str) -> None:
        if self._closed:
            raise ValueError(f"{act} was called on a session that is closed; start another one")


def forward(model: PooledModel, inputs: Sequence[PassInput]) -> list[Any]:
    """A forward pass over several sequences, all of which must live in the model's pool."""
    sessions, parts = _sessions_of(inputs, model.pool), [_part_of(each) for each in inputs]
    try:
        outputs = model.run(parts)
    except (ValueError, MemoryError):  # raised before anything is written
        raise
    except BaseException:
        for session in sessions:
            session.spoil()
        raise
    for session, part in zip(sessions, parts, strict=True):
        session.take(part)
    return outputs


def _sessions_of(inputs: Sequence[PassInput], pool: object) -> list[PooledSession]:
    sessions = []
    for each in inputs:
        if not isinstance(each.session, PooledSession) or each.session.model.pool is not pool:
            raise ValueError("all sessions of a run must belong to the model that runs them")
        sessions.append(each.session)
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("a session takes part in a pass once; join its trees to one")
    return sessions


def _part_of(each: PassInput) -> Packed:
    session = each.session
    assert isinstance(session, PooledSession)
    if isinstance(each, StepInput):
        return session.step(each)
    if isinstance(each, PromptInput):
        return session.chunk(each.tokens, each.keep, each.hidden)
    return session.part(each.tree, each.first, each.layers, each.keep, each.hidden)
