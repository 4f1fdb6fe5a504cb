"""A decoder's weights as the library reads them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from draftwood.arrays import address_of, as_array, as_floats, bits_of
from draftwood.models.decoder import (
    Decoder,
    Expert,
    Experts,
    Layer,
    LayerInputs,
    Norm,
    Projection,
    Rotary,
    Sizes,
)
from draftwood.models.family import Scales
from draftwood.native import library, structures
from draftwood.native.formats import HalfType, Products
from draftwood.native.matrix import (
    Blocks,
    Fill,
    LargePages,
    Matrix,
    RowsInPlace,
    Weights,
)
from draftwood.native.matrix import fill as fill_blocks

Packer = Callable[[str, Projection], Matrix]
"""Makes the matrix at a place of the decoder, which is called as ``3.query`` or ``lm_head``."""

MATRICES = structures.LAYER_MATRICES
"""Matrices of a layer."""

LEAST_BITS = 6.5
"""Bits of a weight below which 4 would save too little to stand in for it."""


class PackedLayers:
    """Packs the parts of decoder layers, and keeps in memory what their structures point to.

    Args:
        products: how matrices are stored and multiplied.
        packer: where the matrices come from; None packs those that are given.

    Attributes:
        weight_bytes: of the matrices with their scales that a pass over a row reads.
        multiply_adds: of these matrices with a row.
        encodings: of rows, that some matrix asks for.
        memory: what structures point to.
    """

    def __init__(self, products: Products, packer: Packer | None = None) -> None:
        self.products: Products = products
        self.weight_bytes = self.multiply_adds = self.encodings = 0
        self.memory: list[object] = []
        self._cached = dict[int, int]()  # layers with keys and values, by number; of those packed
        self._state_size = self._row_size = 0
        self._shared: dict[Blocks, Matrix] = {}
        self._packer = packer  # never its own method: it would keep itself in memory
        self._unfilled: list[tuple[Matrix, Blocks]] = []
        self._pages = LargePages()

    def finish(self, fill: Fill | None = None) -> None:
        """Lay blocks of a file out in their matrices; nothing is packed after that."""
        if self._unfilled:
            (fill or fill_blocks)(self._unfilled)
        self._unfilled.clear()
        self._shared.clear()  # blocks keep their file mapped
        self._packer = None

    def layer(self, index: int, layer: Layer) -> structures.CLayer:
        """The structure of a layer, whose parts are packed by its number."""
        attention, given = layer.attention, layer.input
        parts = {name: getattr(layer, name) for name in MATRICES}
        if given is not None:
            parts |= {"input_gate": given.gate, "input": given.projection}
        return structures.CLayer(
            **{name: self.structure_of(f"{index}.{name}", part) for name, part in parts.items()},
            experts=self._experts(index, layer.experts),
            sinks=self.address(layer.sinks),
            **{name: self.norm_of(norm) for name, norm in layer.norms.items()},
            window=layer.window or 0,
            rotary=-1 if layer.rotary is None else layer.rotary,
            attention=structures.CAttentionShape(**vars(attention) if attention else {}),
            scale=0.0 if layer.scale == 1.0 else layer.scale,
            **self._kept(index, layer),
        )

    def _kept(self, index: int, layer: Layer) -> dict[str, Any]:
        """Say where a layer keeps what later rows read."""
        recurrence = layer.recurrence
        if recurrence is None:
            if layer.source is None:
                self._cached[index] = len(self._cached)
            return {"cached": self._cached[index if layer.source is None else layer.source]}
        from draftwood.models.native.recurrent import structure_of

        found = structure_of(recurrence, self._state_size, self._row_size, self.address)
        self._state_size += recurrence.state_size
        self._row_size += recurrence.row_size
        return {"recurrence": found}

    def _experts(self, index: int, experts: Experts | None) -> structures.CExperts:
        if experts is None:
            return structures.CExperts()
        before, routing = (self.weight_bytes, self.multiply_adds), experts.routing
        count, shared = len(experts.networks), experts.shared
        own = [self._expert(f"{index}.{i}", each) for i, each in enumerate(experts.networks)]
        self.weight_bytes, self.multiply_adds = (
            first + (last - first) * routing.per_row // count
            for first, last in zip(before, (self.weight_bytes, self.multiply_adds), strict=True)
        )
        own += [] if shared is None else [self._expert(f"{index}.{count}", shared)]
        networks = (structures.CExpert * len(own))(*own)
        self.memory.append(networks)
        return structures.CExperts(
            count=count,
            per_row=routing.per_row,
            shares_sum_to_one=routing.sums_to_one,
            has_shared=shared is not None,
            is_sigmoid=routing.is_sigmoid,
            scale=routing.scale,
            sum_epsilon=routing.sum_epsilon,
            router=self.address(experts.router),
            router_bias=self.address(experts.router_bias),
            shared_gate=self.address(experts.shared_gate),
            choice_bias=self.address(experts.choice_bias),
            router_norm=self.address(experts.router_norm),
            factors=self.address(experts.factors),
            networks=networks,
        )

    def _expert(self, place: str, expert: Expert) -> structures.CExpert:
        parts = {name: getattr(expert, name) for name in ("gate", "up", "down")}
        packed = (self.structure_of(f"{place}.{name}", part) for name, part in parts.items())
        return structures.CExpert(*packed)

    def norm_of(self, norm: Norm | None) -> structures.CNorm:
        """The structure of a norm; an empty one for none."""
        if norm is None:
            return structures.CNorm()
        return structures.CNorm(self.address(norm.weight), self.address(norm.bias))

    def structure_of(self, place: str, part: Projection | None) -> structures.CMatrix:
        """The structure of a projection, packed by its place; an empty one for none."""
        return structures.CMatrix() if part is None else self._packed(place, part).structure

    def _pack(self, place: str, part: Projection) -> Matrix:
        if type(part.weight) is not Blocks:  # others are not read as they lie in the file
            return Matrix.pack(part.weight, part.bias, self.products, self._pages.take)
        matrix, unfilled = Matrix.of_blocks(part.weight, part.bias, self.products, self._pages.take)
        self._unfilled += unfilled
        return matrix

    def _packed(self, place: str, part: Projection) -> Matrix:
        """The matrix as the library reads it; blocks that stand at two places are stored once."""
        known = self._shared.get(part.weight) if isinstance(part.weight, Blocks) else None
        if known is None:
            known = (self._packer or self._pack)(place, part)
            self.memory.append(known)
            self.encodings |= known.structure.encoding
            self.weight_bytes += known.weight_bytes
            self.multiply_adds += known.structure.outputs * known.structure.inputs
            if isinstance(part.weight, Blocks):
                self._shared[part.weight] = known
        return known

    def address(self, numbers: Any) -> int | None:
        """Address of an array or a tensor, which from now on stays in memory; None for none."""
        if numbers is None:
            return None
        array = np.ascontiguousarray(as_array(numbers))
        self.memory.append(array)
        return address_of(array)


class NativeWeights(PackedLayers):
    """Everything that ``structure`` points to, kept in memory as long as this object.

    Args:
        products, packer: as ``PackedLayers`` takes them.
        half_type: of the embedding where it has floats; bfloat16 or float32.
        has_byte_cache: whether keys and values are kept in 8 bits.
        fill: lays blocks of a file out in their matrices.

    Attributes:
        structure: what the library runs.
        depth: layers.
        is_tied: whether embedding and output head are the same weights.
    """

    def __init__(
        self,
        decoder: Decoder,
        vocab_size: int,
        products: Products,
        half_type: HalfType,
        has_byte_cache: bool = False,
        packer: Packer | None = None,
        fill: Fill | None = None,
    ) -> None:
        super().__init__(products, packer)
        self.depth = len(decoder.layers)
        self.norm, self.head_bias = decoder.norm, decoder.lm_head.bias
        self.lm_head = self._packed("lm_head", decoder.lm_head)
        self.embedding = self._embedding_of(decoder.embedding, half_type)
        self.embedding_scale = decoder.scales.embedding
        self.is_tied = _is_tied(decoder)
        self.structure = self._decoder(decoder, vocab_size, half_type, has_byte_cache)
        self.finish(fill)

    @cached_property
    def cache_shape(self) -> structures.CCacheShape:
        """Shape of the blocks that hold what later rows read; see cache.h."""
        shape, each = structures.CCacheShape(), (structures.CCacheLayer * (self.depth + 1))()
        library.library().draftwood_cache_shape(self.structure, self.depth, shape, each)
        shape.each = each  # which stays in memory with it
        return shape

    @property
    def matrices(self) -> list[structures.CMatrix]:
        """Matrices of the layers, those of experts aside."""
        layers = self.structure.layers[: self.depth]
        return [getattr(layer, name) for layer in layers for name in MATRICES]

    @property
    def is_mixture(self) -> bool:
        """True if some layer has experts."""
        return any(layer.experts.count for layer in self.structure.layers[: self.depth])

    def _decoder(
        self, decoder: Decoder, vocab_size: int, half_type: HalfType, has_byte_cache: bool
    ) -> structures.CDecoder:
        sizes, embedding = decoder.sizes, self.embedding
        scales, rotaries = decoder.scales, decoder.rotaries
        layers = (structures.CLayer * self.depth)(
            *(self.layer(index, layer) for index, layer in enumerate(decoder.layers))
        )
        return structures.CDecoder(
            hidden=sizes.hidden,
            heads=sizes.heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            rotary_dim=sizes.rotary_dim,
            rotaries=len(rotaries),
            vocabulary=vocab_size,
            encodings=self.encodings,
            is_bfloat16=half_type == "bfloat16",
            has_byte_cache=has_byte_cache,
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
            query_growth=scales.query_growth,
            growth_every=scales.growth_every,
            rotary_scales=self.address(np.array([rotary.scale for rotary in rotaries], np.float32)),
            frequencies=self.address(_stacked(rotaries, sizes.rotary_dim // 2)),
            embedding=None if isinstance(embedding, Matrix) else self.address(embedding),
            embedding_codes=(
                embedding.structure if isinstance(embedding, Matrix) else structures.CMatrix()
            ),
            norm=self.norm_of(decoder.norm),
            lm_head=self.lm_head.structure,
            layers=layers,
            inputs=self._inputs(decoder.inputs),
        )

    def _inputs(self, inputs: LayerInputs | None) -> structures.CLayerInputs:
        if inputs is None:
            return structures.CLayerInputs()
        table = RowsInPlace(inputs.embedding)
        self.memory.append(table)
        return structures.CLayerInputs(
            size=inputs.size,
            embedding_scale=inputs.embedding_scale,
            scale=inputs.scale,
            embedding=table.pointer,
            projection=self.structure_of("input_projection", inputs.projection),
            norm=self.norm_of(inputs.norm),
        )

    def _embedding_of(self, embedding: Weights, half_type: HalfType) -> np.ndarray | Matrix:
        """Floats, or the bits of bfloat16, or blocks as the file has them, of which a row is read
        when it is needed.
        """
        if not isinstance(embedding, Blocks):
            return as_floats(embedding) if half_type == "float32" else bits_of(embedding)
        of_products = self.weight_bytes, self.multiply_adds
        table = self._packed("embedding", Projection(embedding, None))
        self.weight_bytes, self.multiply_adds = of_products  # products read none of it
        return table


def saves_by_int4(weights: NativeWeights) -> bool:
    """True if 4 bits would save enough, and this CPU multiplies them fast."""
    every = (*weights.matrices, weights.structure.lm_head)
    count = sum(each.outputs * each.inputs for each in every)
    is_fast = bool(library.instructions(True))
    return is_fast and not weights.is_mixture and 8 * weights.weight_bytes > LEAST_BITS * count


def _is_tied(decoder: Decoder) -> bool:
    embedding, head = decoder.embedding, decoder.lm_head.weight
    if head is embedding:
        return True
    addresses = [getattr(each, "data_ptr", None) for each in (embedding, head)]
    return None not in addresses and addresses[0]() == addresses[1]()  # type: ignore[misc]


def _stacked(rotaries: Sequence[Rotary], pairs: int) -> np.ndarray:
    """Frequencies of tables below each other, those of fewer pairs with zeros behind."""
    found = np.zeros((len(rotaries), pairs), np.float32)
    for row, rotary in zip(found, rotaries, strict=True):
        row[: len(rotary.frequencies)] = as_array(rotary.frequencies)
    return found


def _usual_scale(sizes: Sizes) -> float:
    """One by the root of a head's dimensions, in float32."""
    return float(np.float32(1) / np.sqrt(np.float32(sizes.head_dim)))


def _gating(sizes: Sizes, scales: Scales) -> structures.CGating:
    activation = structures.ACTIVATIONS[sizes.activation]
    limit = scales.gate_limit or 0.0
    return structures.CGating(activation, scales.gate_slope, limit, scales.gated_shift)
