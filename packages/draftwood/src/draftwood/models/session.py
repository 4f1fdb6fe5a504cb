"""One sequence in a pool of caches, the same for every way to run a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from draftwood.arrays import as_array, below
from draftwood.models.cache.blocks import BlockPool
from draftwood.models.cache.places import CacheSlice
from draftwood.models.model import (
    ALL_LAYERS,
    ForwardInput,
    InProcess,
    Keep,
    Layers,
    Model,
    ModelOutput,
    ModelSession,
    PromptInput,
    RowsInput,
    StepInput,
)
from draftwood.models.parts import Packed, PackedInput, PackedStep, Stopped
from draftwood.models.requirements import require_embeddings
from draftwood.tree import DraftTree

if TYPE_CHECKING:
    from draftwood.models.cache.pool import SlotPool


@runtime_checkable
class PooledModel(Model, Protocol):
    """A model whose sequences live in the slots of one pool."""

    @property
    def pool(self) -> "SlotPool": ...

    def run(self, parts: Sequence[Packed]) -> list[Any]:
        """Run the parts of several sequences; write their keys and values to the pool."""
        ...

    def check(self, layers: Layers) -> None:
        """Raise ValueError unless this model can run these layers."""
        ...

    def catch_up(self, slot: int, length: int) -> bool:
        """Have all in the pool that a pass behind so many tokens of a slot reads, by running some
        of them again; True if there were any.
        """
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
        self._stopped: Stopped | None = None  # where these have a stop
        self._positions: Any = None  # of these nodes where they are rows with a mask of their own
        self._closed = False
        self.slot = model.pool.acquire(self)

    @property
    def length(self) -> int:
        return self._length

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        given = PromptInput(self, tokens, keep, tuple(hidden), embeddings)
        return self.model.forward([given])[0]

    def chunk(
        self, tokens: Sequence[int], keep: Keep, hidden: Sequence[int], embeddings: Any = None
    ) -> PackedInput:
        """This sequence's share of a forward pass that appends tokens, or vectors, to it."""
        self._require_open("extend")
        if embeddings is not None:
            require_embeddings(self.model, tokens, embeddings)
        elif len(tokens) == 0:
            raise ValueError("extend needs at least one token")
        given = (tokens, keep, tuple(hidden), embeddings)
        return PackedInput.of_prompt(self.slot, self.length, *given)

    def adopt(self, layers: Sequence[tuple[Any, Any]], length: int) -> None:
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

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        return self.model.forward([ForwardInput(self, tree, first, tuple(hidden))])[0]

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
        stream = None
        if layers.start:
            stream = self._stream(tree, first, layers)
        elif first > (ran := self._ran_through(layers) if self._positions is None else 0):
            raise ValueError(
                f"nodes before {first} must be run first; {ran} were run since the last commit"
                + ("" if layers == self._layers else " through these layers")
            )
        if first >= len(tree):
            raise ValueError(f"no node of {len(tree)} comes after {first - 1}; run an earlier one")
        positions = self.length + tree.depths
        end = self.model.layers if layers.stop is None else layers.stop
        if layers.stop is not None:
            keep, hidden = "none", sorted({*hidden, layers.stop})
        if (layers.start or layers.stop) and not all(layers.start <= at <= end for at in hidden):
            raise ValueError(
                f"a pass from layer {layers.start} to {end} has the hidden states of these, not"
                f" {list(hidden)}"
            )
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
            stream=stream,
            tree=tree,
        )

    def masked(self, given: RowsInput) -> PackedInput:
        """This sequence's share of a forward pass over rows with a mask of their own."""
        self._require_open("forward")
        from draftwood.models.rows import packed_rows  # which few texts need

        return packed_rows(given, self.slot, self._length)

    def _stream(self, tree: DraftTree, first: int, layers: Layers) -> Any:
        """Find the states [nodes dim] with which the nodes of a tree stopped that go on."""
        stopped, before = self._stopped, replace(layers, start=0, stop=layers.start)
        if (
            first != 0
            or stopped is None
            or len(tree) > self._ran_through(before)
            or stopped.shared_with(tree) < len(tree)
        ):
            raise ValueError(
                f"a pass that starts at layer {layers.start} goes on with the first nodes of a tree"
                " that were run to that layer, and no further, since the last commit"
            )
        return stopped.states[: len(tree)]

    def place_states(self, tree: DraftTree, states: Any, layers: Layers) -> None:
        """Let the nodes of a tree stop with these states [nodes dim] before the layer where a pass
        through ``layers`` starts, whatever they ran through.
        """
        self._require_open("place_states")
        if len(states) != len(tree) or layers.start < 1:
            raise ValueError(
                f"a tree of {len(tree)} nodes stops with as many states, behind a layer"
            )
        if isinstance(self.model.pool, BlockPool):
            states = as_array(states)
        self._stopped, self._ran, self._positions = Stopped(tree, states), len(tree), None
        self._layers = replace(layers, start=0, stop=layers.start)

    def go_on_with(self, nodes: Sequence[int]) -> None:
        """Let only these of the nodes that stopped before a layer go on, as a tree of their own.

        Args:
            nodes: numbers in the tree that stopped, growing, each with its parent.
        """
        self._require_open("go_on_with")
        stopped = self._stopped
        count = 0 if self._layers.stop is None else self._ran
        if stopped is None or list(nodes) != sorted({0, *nodes}) or max(nodes) >= count:
            raise ValueError(
                f"nodes {list(nodes)} cannot go on: they must grow from 0, and be of those that"
                f" stopped before a layer since the last commit, which are {count}"
            )
        self._stopped = stopped.of(nodes)
        self.model.pool.keep(self.slot, self._length, nodes)
        self._ran = len(nodes)

    def exit_of(self, given: ForwardInput) -> tuple[int, int] | None:
        """The layer at which the first nodes of a tree that is to run through all layers stopped,
        and how many did; None where it has to run from the beginning.
        """
        stopped, stop = self._stopped, self._layers.stop
        if given.layers != ALL_LAYERS or given.first or stopped is None or stop is None:
            return None
        if self._layers != Layers(stop=stop) or min(given.hidden, default=stop) < stop:
            return None
        count = min(self._ran, stopped.shared_with(given.tree))
        return None if count < min(self._ran, len(given.tree)) else (stop, count)

    def take(self, part: Packed, output: Any) -> None:
        """Go on behind a part of this sequence that was run."""
        if isinstance(part, PackedStep):
            *kept, _ = output.steps  # the paths of all but the last are in place
            self.went_on(sum(len(step.path) for step in kept), part.rows)
        elif part.is_prompt:
            self._length, self._ran = self._length + part.place.count, 0
        else:
            stop, ran = part.layers.stop, part.place.start - self._length
            if stop is not None:
                assert part.tree is not None
                states = output.hidden[stop]
                if ran:
                    assert self._stopped is not None  # nodes before these ran likewise
                    states = below(self._stopped.states[:ran], states)
                self._stopped = Stopped(part.tree, states)
            self._ran, self._layers = ran + part.place.count, replace(part.layers, start=0)
            self._positions = part.positions if part.has_own_mask else None

    def spoil(self) -> None:
        """A pass failed in its midst: what nodes had in the cache may be gone."""
        self._ran = 0

    def step(self, given: StepInput) -> PackedStep:
        """This sequence's share of a forward pass that the library drafts itself."""
        self._require_open("forward")
        return PackedStep(CacheSlice(self.slot, self._length, given.caller.places), given)

    def place_node(self) -> CacheSlice:
        """Place for one node, for a caller who runs it through all layers and writes its keys and
        values there. It counts as run.
        """
        self._require_open("place_node")
        self._ran, self._layers, self._positions = 1, ALL_LAYERS, None
        return CacheSlice(self.slot, self.length, 1)

    def reserve(self, count: int) -> int:
        """Address of the table of blocks, with room for so many places behind the text.

        For a caller who runs tokens and nodes there, and then tells ``went_on``.
        """
        self._require_open("reserve")
        pool, place = self.model.pool, CacheSlice(self.slot, self._length, count)
        assert isinstance(pool, BlockPool)
        self.model.catch_up(self.slot, self._length)
        with pool.lock:
            pool.cover([place])
            pool.cover_states([(place, self._length)])
            return pool.address_of(self.slot)

    def has_room(self, count: int) -> bool:
        """True if context and blocks that are free have room for so many places behind the text."""
        limit, pool = self.model.context_length, self.model.pool
        assert isinstance(pool, BlockPool)
        fits = limit is None or self._length + count <= limit
        return fits and (pool.free_blocks is None or self.wants(count) <= pool.free_blocks)

    def went_on(self, tokens: int, nodes: int) -> None:
        """Take note of tokens that were appended for good, and of nodes that were run behind them
        through all layers.
        """
        self._length, self._ran, self._layers = self._length + tokens, nodes, ALL_LAYERS
        self._positions = None

    def commit(self, path: Sequence[int]) -> None:
        self._require_open("commit")
        ran = self._ran_through(ALL_LAYERS)
        if path and max(path) >= ran:
            raise ValueError(
                f"node {max(path)} cannot be kept: only {ran} nodes were run through all layers"
            )
        if self._positions is not None:
            from draftwood.models.rows import require_in_order

            require_in_order(self._positions, path, self._length)
        self.model.pool.keep(self.slot, self._length, path)
        self._length += len(path)
        self._ran = 0

    def rewind(self, count: int) -> None:
        self._require_open("rewind")
        if not 0 <= count <= self._length:
            raise ValueError(f"cannot take back {count} of {self._length} tokens")
        self._length -= count
        self._ran, self._layers, self._positions = count, ALL_LAYERS, None

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
        """Count the nodes after the committed tokens that ran through just these layers."""
        return self._ran if layers == self._layers else 0

    def _require_open(self, act: str) -> None:
        if self._closed:
            raise ValueError(f"{act} was called on a session that is closed; start another one")
