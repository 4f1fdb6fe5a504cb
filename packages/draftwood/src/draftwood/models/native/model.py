"""Models on a CPU, where one C++ call runs all layers."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np

from draftwood.arrays import FloatType, Int, address_of, as_array, as_floats, rounded
from draftwood.models.cache.blocks import BlockPool
from draftwood.models.cache.places import CacheSlice
from draftwood.models.decoder_model import DecoderModel, DescribedModel, outputs
from draftwood.models.model import ALL_LAYERS, Device, Layers, RowAdapter, chunks
from draftwood.models.native.step import kept_states, run_steps, sequences
from draftwood.models.native.weights import NativeWeights, Packer, saves_by_int4
from draftwood.models.parts import Packed, PackedInput, PackedStep
from draftwood.models.requirements import beyond
from draftwood.native import library, structures
from draftwood.native.formats import INTEGERS, CacheNumbers, CacheType, HalfType, Products
from draftwood.native.matrix import Fill
from draftwood.native.threads import threads

if TYPE_CHECKING:
    from draftwood.models.cache.states import StateBlocks
    from draftwood.models.native.embeddings_and_head import NativeEmbeddingsAndHead
    from draftwood.models.native.int4 import RoundedWeights
    from draftwood.models.native.row_adapter import MarkedRows


def has_int8(device: Device) -> bool:
    """True if this device multiplies 8-bit integers fast."""
    return device.type == "cpu" and library.available() and bool(library.instructions(True))


def require_int8(device: Device, products: Products = "int8") -> None:
    """Raise ValueError unless ``has_int8``, saying what these products lack."""
    if device.type != "cpu":
        raise ValueError(
            f"{products} runs on CPUs only, not on {device.type}; leave dtype out, or take bfloat16"
        )
    if not library.instructions(True):
        raise ValueError(
            f"{products} needs a CPU with fast 8-bit products (AVX2 or better, or ARM's dot"
            " products); take bfloat16 or float32"
        )


class NativeModel(DecoderModel[BlockPool]):
    """All layers in C++, over rows that do not touch each other's results.

    A row gives the same bits whatever is computed beside it: alone, in a chain or within a tree.
    Greedy texts with drafts therefore equal plain ones in every type.

    Args:
        hf_model: a model of Transformers of one of the ``FAMILIES``, on the CPU, or a
            ``DescribedModel``.
        products: how matrices are stored and multiplied; None takes bfloat16 for models in
            bfloat16, else float32. In ``int8`` 32 weights share a scale, and so do 32 activations
            of a row; weights that lie on 16 even steps anyway, since a file of 4-bit weights is
            where they came from, are stored in 4 bits without loss. In ``int4`` all weights are put
            on 16 even steps. Weights in the blocks of a GGUF file stay as they are; in ``float32``
            rows are not rounded either.
        dtype: of keys and values, and what is handed out is rounded to; None takes the model's.
        cache: in ``int8`` keys and values are rounded to 8 bits, and those of a head and token
            share a scale; they then take half of the memory that they take in bfloat16. None stores
            them in ``dtype``.
        packer: where the matrices come from; None packs the model's weights. Of a model whose
            matrices were packed before only the shapes of weights are looked at.
        fill: lays blocks of a file out in their matrices; None does that alone.

    Attributes:
        weights: what the library reads.
        clock: called before each forward pass with its input and its number of threads, to say
            where times are written down; gives the number of threads. None for no times.
        rounded: what runs in their place in a model of ``drafting``.
        exact: the model that one of ``drafting`` was made of; None for a whole one.

    Raises:
        ValueError: for architectures of another shape, on other devices, for int8 on CPUs without
            fast 8-bit products, and (CompilerError) where the library cannot be compiled.
    """

    makes_steps: ClassVar[bool] = True

    def __init__(
        self,
        hf_model: Any,
        products: Products | None = None,
        dtype: FloatType | None = None,
        packer: Packer | None = None,
        cache: CacheType | None = None,
        fill: Fill | None = None,
    ) -> None:
        if hf_model.device.type != "cpu":
            raise ValueError(
                f"NativeModel runs on CPUs, not on {hf_model.device.type}; use LeanModel"
            )
        if products is not None and products in INTEGERS:
            require_int8(hf_model.device, products)
        model = DescribedModel.of(hf_model)
        decoder, dtype = model.decoder, dtype or model.dtype
        half_type: HalfType = "bfloat16" if dtype == "bfloat16" else "float32"
        self.products: Products = products or half_type
        self.cache: CacheType | None = cache
        vocab_size, in_bytes = model.config.vocab_size, cache == "int8"
        self.weights = NativeWeights(
            decoder, vocab_size, self.products, half_type, in_bytes, packer, fill
        )
        pool, self._states = _pool_of(self.weights, cache or half_type)
        super().__init__(model, pool)
        self.dtype: FloatType = dtype
        self.library = library.library()
        self.clock: Callable[[structures.CForwardInput, int], int] | None = None
        self.structure, self.weight_bytes = self.weights.structure, self.weights.weight_bytes
        self._head = model.head
        self.abilities |= {"int4"} if saves_by_int4(self.weights) else set()
        self.abilities |= {"beside", "adapted_rows"}
        self.abilities -= {"cache"} if in_bytes else set()
        if self._states is not None:
            # a state goes by all tokens before it, and by no others
            self.abilities -= {"partial", "halves", "resume", "window", "cache", "rows"}
            self.abilities -= {"embeddings", "adapted_rows", "beside"}
        if decoder.inputs is not None:  # which are made of tokens, before the first layer
            self.abilities -= {"partial", "halves", "resume"}
            self.abilities -= {"embeddings", "adapted_rows", "beside"}
        if any(layer.source is not None for layer in decoder.layers):
            self.abilities -= {"partial"}
        if any(layer.attention is not None for layer in decoder.layers):
            self.abilities -= {"cache", "adapted_rows"}  # which go by one shape of all layers
        if any(layer.scale != 1.0 for layer in decoder.layers):
            self.abilities -= {"halves"}
        self.rounded: RoundedWeights | None = None  # that run in the place of ``weights``
        self.exact: ref[NativeModel] | None = None  # the model without them
        self._rounded, self._rounding = dict[object, NativeModel](), threading.Lock()

    @property
    def instructions(self) -> str:
        """Instructions that the CPU multiplies matrices with."""
        return library.instructions(self.products == "int8") or "plain loops"

    @cached_property
    def int4(self) -> "RoundedWeights":
        """The same weights in 4 bits, made when a pass first asks for them."""
        from draftwood.models.native.int4 import RoundedWeights

        return RoundedWeights(self.weights)

    def drafting(
        self,
        tokens: Int[np.ndarray, " draft_vocab"] | None,
        layers: Products | None,
        head: Products,
    ) -> "NativeModel":
        """The same model over the same cache with rounded weights, and with logits of some tokens
        alone: entry i of a row belongs to ``tokens[i]``.

        One model gives the same object for the same arguments.

        Args:
            tokens: all different; None takes all.
            layers: as ``RoundedWeights`` takes it, as is ``head``.
        """
        from draftwood.models.native.int4 import RoundedWeights

        key = (None if tokens is None else tokens.tobytes(), layers, head)
        with self._rounding:
            if key not in self._rounded:
                made = object.__new__(type(self))  # one model in all but what runs
                vars(made).update(vars(self))
                made._rounded = {}  # in the same one, it would keep itself in memory
                made.exact = ref(self)
                made.rounded = RoundedWeights(self.weights, layers, head, tokens)
                made.structure = made.rounded.structure
                self._rounded[key] = made
            return self._rounded[key]

    def _marked_rows(self, parts: Sequence[PackedInput]) -> "MarkedRows | None":
        """Find the rows of a pass that an adapter acts on; None where there are none."""
        if not any(part.adapted for part in parts):
            return None
        from draftwood.models.native.row_adapter import marked_rows

        return marked_rows(parts)

    def row_adapter(self, vectors: Any, factors: Mapping[str, tuple[Any, Any]]) -> RowAdapter:
        """Make an adapter for rows of this model; see ``NativeRowAdapter``.

        Raises:
            ValueError: for vectors or factors that do not fit.
        """
        from draftwood.models.native.row_adapter import NativeRowAdapter

        weights, scale = self.weights.structure, self.scales.inputs
        return NativeRowAdapter(
            weights, self.layers, as_array(vectors) * np.float32(scale), factors
        )

    @property
    def embeddings_and_head(self) -> "NativeEmbeddingsAndHead":
        from draftwood.models.native.embeddings_and_head import NativeEmbeddingsAndHead

        return NativeEmbeddingsAndHead(self.weights, self.dtype, self._head)

    def group_key(self, part: Packed) -> object:
        # rows do not touch each other's results, but begin alike
        if not isinstance(part, PackedInput):
            return part.layers, False, None
        return part.layers, part.embeddings is not None, part.adapter

    def run(self, parts: Sequence[Packed]) -> list[Any]:
        if self._states is not None:
            for part in parts:
                self._have_before(part, self._states)
        return super().run(parts)

    def _have_before(self, part: Packed, pool: "StateBlocks") -> None:
        """Have the states of tokens and nodes before a part, where they are not known any more."""
        slot, before, start = part.place.slot, part.before, part.place.start
        is_behind = self.catch_up(slot, before)
        if before == start or not (is_behind or not pool.holds_rows(slot, before, start)):
            return
        assert isinstance(part, PackedInput)
        assert part.tree is not None
        count = start - before
        first = replace(
            part,
            tokens=part.tree.tokens[:count],
            positions=part.tree_positions[:count],
            place=CacheSlice(slot, before, count),
            sees=part.tree.ancestors[:count, :count],
            tree_positions=part.tree_positions[:count],
            keep="none",
            hidden=(),
        )
        super().run([first])

    def catch_up(self, slot: int, length: int) -> bool:
        """Run tokens of a text again behind which a running state is not known any more, with the
        model's own weights; True if there were any.
        """
        pool, own = self._states, self if self.exact is None else self.exact()
        if pool is None:
            return False
        start = pool.sure_until(pool.blocks_of(slot), length)
        if start == length:
            return False
        assert own is not None
        try:
            for chunk in chunks(pool.tokens(slot, start, length)):
                DecoderModel.run(own, [PackedInput.of_prompt(slot, start, chunk, "none")])
                start += len(chunk)
        except BaseException:
            pool.forget_behind(slot, start)
            raise
        return True

    def compute(self, parts: Sequence[Packed], hidden: Sequence[int]) -> list[Any]:
        self.pool.cover_states([(part.place, part.before) for part in parts])
        order = self.pool.beginning_alike([part.place.slot for part in parts])
        made = self._compute([parts[number] for number in order], hidden)
        placed = dict(zip(order, made, strict=True))
        return [placed[number] for number in range(len(parts))]

    def _compute(self, parts: Sequence[Packed], hidden: Sequence[int]) -> list[Any]:
        if not all(0 <= layer <= self.layers for layer in hidden):
            raise ValueError(f"the model has hidden states 0 to {self.layers}, not {tuple(hidden)}")
        steps = [part for part in parts if isinstance(part, PackedStep)]
        if steps and len(steps) == len(parts):
            return self._make_steps(steps, hidden)
        others = [part for part in parts if isinstance(part, PackedInput)]
        rows = sum(part.place.count for part in others)
        states = self._room_for(1, rows + sum(part.rows for part in steps), hidden)
        wanted = sum(part.wanted for part in others)
        width = self.structure.lm_head.outputs
        logits = np.empty((wanted, width), np.float32)
        tokens = _joined([part.tokens for part in others])
        run = self._input(others, tokens, logits, states)
        at_once = self.prepare(run)
        if not steps:
            structure = self.int4.structure if parts[0].layers.int4 else self.structure
            if self.library.draftwood_run(structure, run, at_once) >= 0:
                raise ValueError(beyond(tokens, self.vocab_size))
            made = []
        else:
            made = run_steps(self.structure, self.pool, run, steps, rows, states, at_once)
        stop = parts[0].layers.stop  # nodes that go on do so with what they stopped with
        held = {
            layer: rounded(state[0, :rows], "float32" if layer == stop else self.dtype)
            for layer, state in states.items()
        }
        given = iter(outputs(logits, held, others))
        return [made.pop(0) if isinstance(part, PackedStep) else next(given) for part in parts]

    def _make_steps(self, steps: Sequence[PackedStep], hidden: Sequence[int]) -> list[Any]:
        """Make steps of texts with nothing beside them."""
        kept = kept_states(steps) if hidden else 1
        states = self._room_for(kept, sum(part.rows for part in steps), hidden)
        run = structures.CForwardInput(
            **self._layers_of(ALL_LAYERS), hidden=self._addresses(states), layers=self.layers
        )
        return run_steps(self.structure, self.pool, run, steps, 0, states, self.prepare(run))

    def _room_for(self, kept: int, rows: int, hidden: Sequence[int]) -> dict[int, np.ndarray]:
        """Make room for hidden states [kept rows dim] by layer."""
        shape = kept, rows, self.sizes.hidden
        return {layer: np.empty(shape, np.float32) for layer in hidden}

    def _addresses(self, states: Mapping[int, np.ndarray]) -> Any:
        """Say where the hidden states of each layer go; 0 for nowhere."""
        found = library.integers([0] * (self.layers + 1))
        for layer, rows in states.items():
            found[layer] = address_of(rows)
        return found

    def _layers_of(self, layers: Layers) -> dict[str, Any]:
        """Describe the layers that are run, by the fields of ``CForwardInput``."""
        return {
            "attention": self._kept(layers.without_attention),
            "mlp": self._kept(layers.without_mlp),
            "start": layers.start,
            "stop": self.layers if layers.stop is None else layers.stop,
        }

    def _input(
        self,
        parts: Sequence[PackedInput],
        tokens: np.ndarray,
        logits: np.ndarray,
        states: dict[int, np.ndarray],
    ) -> structures.CForwardInput:
        """Describe parts that go through the same layers to the library."""
        positions = _joined([part.positions for part in parts])
        sees = [np.ascontiguousarray(part.sees) for part in parts]
        places, tables = sequences(self.pool, parts)
        layers = parts[0].layers if parts else ALL_LAYERS
        stream = [part.stream for part in parts if part.stream is not None]
        stream += [
            self._stream_of(part.embeddings) for part in parts if part.embeddings is not None
        ]
        stopped = np.concatenate(stream, dtype=np.float32) if stream else None
        marked = self._marked_rows(parts)
        run = structures.CForwardInput(
            sequences=places,
            tokens=address_of(tokens),
            positions=address_of(positions),
            sees=library.integers([address_of(each) for each in sees]),
            hidden=self._addresses(states),
            logits=address_of(logits),
            num_sequences=len(parts),
            rows=len(tokens),
            layers=self.layers,
            stream=None if stopped is None else address_of(stopped),
            marked=marked and marked.structure,
            **self._layers_of(layers),
        )
        # in memory as long as the structure
        run.kept = (tokens, positions, sees, tables, stopped, marked)
        return run

    def _stream_of(self, embeddings: Any) -> np.ndarray:
        """Scale vectors in the place of embeddings to what enters the first layer [rows hidden]."""
        return as_floats(as_array(embeddings)) * np.float32(self.scales.inputs)

    def prepare(self, run: structures.CForwardInput) -> int:
        """Tell the clock; gives the number of threads."""
        at_once = threads()
        return at_once if self.clock is None else self.clock(run, at_once)

    def _kept(self, left_out: frozenset[int]) -> bytes:
        """For each layer 1, or 0 where it is left out."""
        if not left_out:
            return b"\1" * self.layers
        return bytes(index not in left_out for index in range(self.layers))


def _pool_of(
    weights: NativeWeights, numbers: CacheNumbers
) -> "tuple[BlockPool, StateBlocks | None]":
    """A cache of keys and values; once more where it holds running states."""
    shape = weights.cache_shape
    if not shape.row_size:
        return BlockPool(shape, numbers), None
    from draftwood.models.cache.states import StateBlocks

    states = StateBlocks(shape, numbers)
    return states, states


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Put 64-bit integers behind each other."""
    if len(pieces) == 1:
        return np.ascontiguousarray(pieces[0], np.int64)
    return np.concatenate(pieces, dtype=np.int64) if pieces else np.empty(0, np.int64)
