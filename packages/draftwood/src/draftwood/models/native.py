"""Models on a CPU, where one C++ call runs all layers."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftwood.models.blocks import BlockPool
from draftwood.models.decoder import Decoder, Experts, Layer, Norm, Projection, Sizes
from draftwood.models.decoder_model import DecoderModel, outputs
from draftwood.models.described import DescribedModel
from draftwood.models.ends import beyond
from draftwood.models.families import Scales
from draftwood.models.model import ALL_LAYERS
from draftwood.models.native_ends import NativeEnds
from draftwood.models.native_places import sequences
from draftwood.models.native_step import NativeStepper, run_steps
from draftwood.models.parts import Packed, PackedInput, PackedStep
from draftwood.models.session import PooledSession
from draftwood.models.shadow import MATRICES, Shadow, has_shadow
from draftwood.native import library, structures
from draftwood.native.cache_types import stored_as
from draftwood.native.clock import PhaseClock
from draftwood.native.formats import INTEGERS, CacheType, Products
from draftwood.native.matrix import Blocks, Matrix, fill
from draftwood.native.threads import threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Packer = Callable[[str, Projection], Matrix]
"""Makes the matrix at a place of the decoder, which is called as ``3.query`` or ``lm_head``."""


def has_int8(device: torch.device) -> bool:
    """Whether this device multiplies 8-bit integers fast."""
    return device.type == "cpu" and library.available() and bool(library.instructions(True))


def require_int8(device: torch.device, products: Products = "int8") -> None:
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
        hf_model: a model of one of the ``FAMILIES``, on the CPU, or what was read of one.
        products: how matrices are stored and multiplied; None takes bfloat16 for models in
            bfloat16, else float32. In ``int8`` 32 weights share a scale, and so do 32 activations
            of a row; weights that lie on 16 even steps anyway, since a file of 4-bit weights is
            where they came from, are stored in 4 bits without loss. In ``int4`` all weights are put
            on 16 even steps. Weights in the blocks of a GGUF file stay as they are; in ``float32``
            rows are not rounded either.
        dtype: of keys and values, and of what is handed out; None takes the model's.
        cache: in ``int8`` keys and values are rounded to 8 bits, and those of a head and token
            share a scale; they then take half of the memory that they take in bfloat16. None stores
            them in ``dtype``.
        packer: where the matrices come from; None packs the model's weights. Of a model whose
            matrices were packed before only the shapes of weights are looked at.

    Attributes:
        clock: where the time of forward passes is written down; None for nowhere.

    Raises:
        ValueError: for architectures of another shape, on other devices, for int8 on CPUs without
            fast 8-bit products, and (CompilerError) where the library cannot be compiled.
    """

    def __init__(
        self,
        hf_model: "PreTrainedModel | DescribedModel",
        products: Products | None = None,
        dtype: torch.dtype | None = None,
        packer: Packer | None = None,
        cache: CacheType | None = None,
    ) -> None:
        if hf_model.device.type != "cpu":
            raise ValueError(
                f"NativeModel runs on CPUs, not on {hf_model.device.type}; use LeanModel"
            )
        if products is not None and products in INTEGERS:
            require_int8(hf_model.device, products)
        model = DescribedModel.of(hf_model)
        decoder, dtype = model.decoder, dtype or model.dtype
        self.products: Products = products or ("bfloat16" if dtype == torch.bfloat16 else "float32")
        half_type = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self.cache: CacheType | None = cache
        pool = _pool_of(model, *stored_as(cache, half_type, decoder.sizes.head_dim))
        super().__init__(model, pool, dtype)
        self.library = library.library()
        self.clock: PhaseClock | None = None
        self.weight_bytes = 0  # of the matrices with their scales that a pass over a row reads
        self._encodings = 0  # of rows, that some matrix asks for
        self._memory: list[object] = []  # what the structure points to
        self._shared: dict[Blocks, Matrix] = {}
        self._packer = packer or self._pack
        self._unfilled: list[tuple[Matrix, Blocks]] = []
        self.norms, self.head_bias = decoder.norm, decoder.lm_head.bias
        self.lm_head = self._packed("lm_head", decoder.lm_head)
        self.embedding = self._embedding_of(decoder, half_type)
        self.embedding_scale = decoder.scales.embedding
        self.structure = self._decoder(decoder, half_type)
        fill(self._unfilled)
        self._unfilled.clear()
        self._shared.clear()  # blocks keep their file mapped
        self._packer = self._pack
        tied = decoder.lm_head.weight is decoder.embedding or (
            isinstance(decoder.embedding, Tensor)
            and isinstance(decoder.lm_head.weight, Tensor)
            and decoder.lm_head.weight.data_ptr() == decoder.embedding.data_ptr()
        )
        self.is_tied, self.head_module = tied, model.head
        self.abilities |= {"shadow"} if has_shadow(self) else set()

    @property
    def instructions(self) -> str:
        """What the CPU multiplies matrices with."""
        return library.instructions(self.products == "int8") or "plain loops"

    @cached_property
    def shadow(self) -> Shadow:
        """The same weights in 4 bits, made when a pass first asks for them."""
        return Shadow(self)

    @property
    def ends(self) -> NativeEnds:
        return NativeEnds(self)

    def alike(self, part: Packed) -> object:
        return part.layers  # rows do not touch each other's results

    def compute(self, parts: Sequence[Packed], hidden: Sequence[int]) -> list[Any]:
        if not all(0 <= layer <= self.depth for layer in hidden):
            raise ValueError(f"the model has hidden states 0 to {self.depth}, not {tuple(hidden)}")
        steps = [part for part in parts if isinstance(part, PackedStep)]
        others = [part for part in parts if isinstance(part, PackedInput)]
        rows = sum(part.place.count for part in others)
        room = rows + sum(part.place.count for part in steps)
        states = {
            layer: torch.empty(room, self.sizes.hidden, dtype=torch.float32) for layer in hidden
        }
        wanted = sum(part.wanted for part in others)
        logits = torch.empty(wanted, self.vocab_size, dtype=torch.float32)
        tokens = _joined([part.tokens for part in others])
        run = self._input(others, tokens, logits, states)
        at_once = self.prepare(run)
        if not steps:
            structure = self.shadow.structure if parts[0].layers.shadow else self.structure
            if self.library.draftwood_run(structure, run, at_once) >= 0:
                raise ValueError(beyond(tokens, self.vocab_size))
            made = []
        else:
            made = run_steps(self, run, steps, rows, states, at_once)
        stop = parts[0].layers.stop  # nodes that go on do so with what they stopped with
        held = {
            layer: state[:rows].to(state.dtype if layer == stop else self.dtype)
            for layer, state in states.items()
        }
        given = iter(outputs(logits, held, others))
        return [made.pop(0) if isinstance(part, PackedStep) else next(given) for part in parts]

    def _input(
        self,
        parts: Sequence[PackedInput],
        tokens: Tensor,
        logits: Tensor,
        states: dict[int, Tensor],
    ) -> structures.CForwardInput:
        """What the library reads of parts that go through the same layers."""
        positions = _joined([part.positions for part in parts])
        sees = [part.sees.contiguous() for part in parts]
        places, tables = sequences(self.pool, parts)
        layers = parts[0].layers if parts else ALL_LAYERS
        stream = [part.stream for part in parts if part.stream is not None]
        stopped = torch.cat(stream).float().contiguous() if stream else None
        run = structures.CForwardInput(
            sequences=places,
            tokens=tokens.data_ptr(),
            positions=positions.data_ptr(),
            attention=self._kept(layers.without_attention),
            mlp=self._kept(layers.without_mlp),
            sees=library.integers([each.data_ptr() for each in sees]),
            hidden=library.integers(
                [states[i].data_ptr() if i in states else 0 for i in range(self.depth + 1)]
            ),
            logits=logits.data_ptr(),
            num_sequences=len(parts),
            rows=len(tokens),
            layers=self.depth,
            stream=None if stopped is None else stopped.data_ptr(),
            start=layers.start,
            stop=self.depth if layers.stop is None else layers.stop,
        )
        run.kept = (tokens, positions, sees, tables, stopped)  # in memory as long as the structure
        return run

    def stepper(self, session: PooledSession, key: int, temperature: float) -> NativeStepper:
        """Implements ``models.step.StepModel``."""
        return NativeStepper(session, key, temperature)

    def prepare(self, run: structures.CForwardInput) -> int:
        """Tell the clock; gives the number of threads."""
        at_once = threads()
        if self.clock is not None:
            run.seconds = self.clock.next_run(at_once)
        return at_once

    def _kept(self, left_out: frozenset[int]) -> bytes:
        """For each layer 1, or 0 where it is left out."""
        return bytes(index not in left_out for index in range(self.depth))

    def _decoder(self, decoder: Decoder, half_type: torch.dtype) -> structures.CDecoder:
        sizes, embedding = self.sizes, self.embedding
        scales, rotaries = self.scales, decoder.rotaries
        layers = (structures.CLayer * self.depth)(
            *(self._layer(index, layer) for index, layer in enumerate(decoder.layers))
        )
        return structures.CDecoder(
            hidden=sizes.hidden,
            intermediate_size=sizes.intermediate_size,
            heads=sizes.heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            rotary_dim=sizes.rotary_dim,
            rotaries=len(rotaries),
            vocabulary=self.vocab_size,
            encodings=self._encodings,
            is_bfloat16=half_type == torch.bfloat16,
            has_byte_cache=self.cache == "int8",
            is_layer_norm=sizes.is_layer_norm,
            norms_whole_vectors=sizes.norms_whole_vectors,
            is_parallel=sizes.is_parallel,
            gating=_gating(sizes, scales),
            epsilon=sizes.epsilon,
            embedding_scale=scales.embedding * scales.inputs,
            attention_scale=_usual_scale(sizes) if scales.attention is None else scales.attention,
            residual_scale=scales.residual,
            logit_scale=scales.logits,
            score_cap=scales.score_cap or 0.0,
            logit_cap=scales.logit_cap or 0.0,
            rotary_scales=self._address(
                torch.tensor([rotary.scale for rotary in rotaries], dtype=torch.float32)
            ),
            frequencies=self._address(torch.stack([rotary.frequencies for rotary in rotaries])),
            embedding=self._address(embedding) if isinstance(embedding, Tensor) else None,
            embedding_codes=(
                embedding.structure if isinstance(embedding, Matrix) else structures.CMatrix()
            ),
            norm=self._norm(decoder.norm),
            lm_head=self.lm_head.structure,
            layers=layers,
        )

    def _layer(self, index: int, layer: Layer) -> structures.CLayer:
        return structures.CLayer(
            **{
                name: self._structure_of(f"{index}.{name}", getattr(layer, name))
                for name in MATRICES
            },
            experts=self._experts(index, layer.experts),
            sinks=self._address(layer.sinks),
            **{name: self._norm(getattr(layer, name)) for name in structures.NORMS},
            window=layer.window or 0,
            rotary=-1 if layer.rotary is None else layer.rotary,
        )

    def _experts(self, index: int, experts: Experts | None) -> structures.CExperts:
        if experts is None:
            return structures.CExperts()
        before, routing = self.weight_bytes, experts.routing
        networks = (structures.CExpert * len(experts.networks))(
            *(
                structures.CExpert(
                    *(
                        self._structure_of(f"{index}.{number}.{name}", getattr(expert, name))
                        for name in ("gate", "up", "down")
                    )
                )
                for number, expert in enumerate(experts.networks)
            )
        )
        self._memory.append(networks)
        read = (self.weight_bytes - before) * routing.per_row // len(networks)
        self.weight_bytes = before + read
        return structures.CExperts(
            count=len(networks),
            per_row=routing.per_row,
            shares_sum_to_one=routing.sums_to_one,
            router=self._address(experts.router),
            router_bias=self._address(experts.router_bias),
            networks=networks,
        )

    def _norm(self, norm: Norm | None) -> structures.CNorm:
        if norm is None:
            return structures.CNorm()
        return structures.CNorm(self._address(norm.weight), self._address(norm.bias))

    def _structure_of(self, place: str, part: Projection | None) -> structures.CMatrix:
        return structures.CMatrix() if part is None else self._packed(place, part).structure

    def _pack(self, place: str, part: Projection) -> Matrix:
        if type(part.weight) is not Blocks:  # others are not read as they lie in the file
            return Matrix.pack(part.weight, part.bias, self.products)
        matrix, unfilled = Matrix.of_blocks(part.weight, part.bias, self.products)
        self._unfilled += unfilled
        return matrix

    def _packed(self, place: str, part: Projection) -> Matrix:
        """The matrix as the library reads it; blocks that stand at two places are stored once."""
        known = self._shared.get(part.weight) if isinstance(part.weight, Blocks) else None
        if known is None:
            known = self._packer(place, part)
            self._memory.append(known)
            self._encodings |= known.structure.encoding
            self.weight_bytes += known.weight_bytes
            if isinstance(part.weight, Blocks):
                self._shared[part.weight] = known
        return known

    def _embedding_of(self, decoder: Decoder, half_type: torch.dtype) -> Tensor | Matrix:
        """Floats, or blocks as the file has them, of which a row is read when it is needed."""
        if isinstance(decoder.embedding, Tensor):
            return decoder.embedding.to(half_type)
        bytes_of_products = self.weight_bytes
        embedding = self._packed("embedding", Projection(decoder.embedding, None))
        self.weight_bytes = bytes_of_products  # products read none of it
        return embedding

    def _address(self, tensor: Tensor | None) -> int | None:
        """Where a tensor lies, which from now on stays in memory; None for none."""
        if tensor is None:
            return None
        tensor = tensor.contiguous()
        self._memory.append(tensor)
        return tensor.data_ptr()


def _pool_of(model: DescribedModel, dtype: torch.dtype, dims: Sequence[int]) -> BlockPool:
    """``dims`` are the numbers of a head and token, and the bytes of their scale where they have
    one.
    """
    shape = structures.CCacheShape(
        layers=len(model.decoder.layers),
        heads=model.decoder.sizes.num_kv_heads,
        row_bytes=dims[0] * dtype.itemsize,
        has_scales=len(dims) > 1,
    )
    return BlockPool(shape, dtype)


def _usual_scale(sizes: Sizes) -> float:
    """One by the root of a head's dimensions, in float32."""
    return float(torch.tensor(sizes.head_dim, dtype=torch.float32).sqrt().reciprocal())


def _gating(sizes: Sizes, scales: Scales) -> structures.CGating:
    activation = structures.ACTIVATIONS[sizes.activation]
    limit = scales.gate_limit or 0.0
    return structures.CGating(activation, scales.gate_slope, limit, scales.gated_shift)


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """64-bit integers, one tensor of several."""
    if not pieces:
        return torch.empty(0, dtype=torch.int64)
    return (pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))).to(torch.int64).contiguous()
