"""Layers for multi-token prediction (MTP) that come with native models."""

from dataclasses import dataclass
from typing import NoReturn

from draftwood.models.decoder import Layer, Norm, Projection
from draftwood.models.native.model import NativeModel
from draftwood.models.native.weights import PackedLayers
from draftwood.native import structures
from draftwood.native.head import LayerHead


@dataclass(frozen=True, eq=False)
class MtpParts:
    """A layer for multi-token prediction, part by part.

    Attributes:
        layer: the decoder layer.
        norm: behind it.
        token_norm, state_norm: of the token and of the state before it.
        joined: projection [hidden 2*hidden] of both, the token first.
    """

    layer: Layer
    norm: Norm
    token_norm: Norm
    state_norm: Norm
    joined: Projection


class NativeMtp:
    """The layer of a target for multi-token prediction; implements ``MtpHead``.

    Args:
        parts: the layer's own weights, packed as the target's are.
        target: the model that it belongs to.
    """

    def __init__(self, parts: MtpParts, target: NativeModel) -> None:
        self.reads, self.native = (target.layers,), packed(parts, target)

    def text(self) -> NoReturn:
        raise ValueError("the library runs this layer; PyTorch does not")


def packed(parts: MtpParts, target: NativeModel) -> LayerHead:
    """Pack such a layer; embedding, output head, rotary tables and scales are the target's."""
    own = PackedLayers(target.products)
    layer, norm = own.layer(0, parts.layer), own.norm_of(parts.norm)
    fusion = structures.CFusion(
        reads=1,
        feeds_normed=True,
        joins_tokens=True,
        matrix=own.structure_of("joined", parts.joined),
        state_norm=own.norm_of(parts.state_norm),
        token_norm=own.norm_of(parts.token_norm),
    )
    own.finish()
    kept = own, target.weights
    return LayerHead(target.weights.structure, layer, norm, fusion, own.encodings, kept)
