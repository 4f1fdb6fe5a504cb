"""Read a decoder from the modules of a model of Transformers."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from draftwood.models.decoder import (
    Decoder,
    Expert,
    Experts,
    Layer,
    Norm,
    Projection,
    Rotary,
    Sizes,
)
from draftwood.models.families import FAMILIES, Family, Scales
from draftwood.native.matrix import Blocks, Weights
from draftwood_torch.models.experts import BLOCKS, is_mixture, matrices
from draftwood_torch.models.support import layer_windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Activations of gated networks: Transformers' names, and ours."""


def projection_of(module: Any) -> Projection:
    """Read a linear layer from its module."""
    bias: Any = getattr(module, "bias", None)
    return Projection(weights_of(module), None if bias is None else bias.detach())


def weights_of(module: nn.Module) -> Weights:
    """Read the weights of a linear layer or an embedding."""
    blocks: Blocks | None = getattr(module, BLOCKS, None)
    if blocks is not None:
        return blocks
    weight: Any = module.weight
    return weight.detach()


def why_not_lean(hf_model: "PreTrainedModel") -> str | None:
    """Say why ``read_decoder`` cannot read this model; None if it can."""
    if any(parameter.is_meta for parameter in hf_model.parameters()):
        return "some of its weights are not in memory"
    return why_other_shape(hf_model)


def why_other_shape(hf_model: "PreTrainedModel") -> str | None:
    """Say why a model is of another shape, wherever its weights are; None if it is not."""
    config: Any = hf_model.config.get_text_config()
    family = FAMILIES.get(type(hf_model).__name__)
    if family is None:
        return f"{type(hf_model).__name__} is not one of {', '.join(FAMILIES)}"
    reason = family.why_not(config)
    if reason is not None:
        return reason
    if getattr(config, family.activation) not in ACTIVATIONS:
        return (
            f"its activation is {getattr(config, family.activation)}, not one of"
            f" {', '.join(ACTIVATIONS)}"
        )
    tables = getattr(hf_model.get_decoder(), "rotary_emb", None)
    if not all(
        isinstance(getattr(tables, f"{name}inv_freq", None), Tensor)
        for name in _rotary_names(family, config)
    ):
        return "it has no table of rotary frequencies"
    if hf_model.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"its weights are {hf_model.dtype}"
    modules = dict(hf_model.get_decoder().named_modules())
    if any(
        name.endswith("_proj") and type(each) is not nn.Linear for name, each in modules.items()
    ):
        return "its linear layers are quantised or adapted"
    if any(name.endswith(".experts") and not is_mixture(each) for name, each in modules.items()):
        return "its experts are quantised or adapted"
    return None


@torch.no_grad()
def read_decoder(hf_model: "PreTrainedModel") -> Decoder:
    """The parts of a model.

    Raises:
        ValueError: for one that is of another shape; the message says why.
    """
    reason = why_not_lean(hf_model)
    if reason is not None:
        raise ValueError(f"the lean path cannot run this model: {reason}; use TransformersModel")
    decoder: Any = hf_model.get_decoder()
    family, windows = FAMILIES[type(hf_model).__name__], layer_windows(hf_model)
    names = _rotary_names(family, hf_model.config.get_text_config())
    reader = _Reader(family, hf_model, _sizes(family, hf_model, decoder.rotary_emb, names[0]))
    return Decoder(
        sizes=reader.sizes,
        scales=reader.scales(),
        embedding=weights_of(decoder.embed_tokens),
        layers=tuple(
            reader.layer(index, layer, window, names)
            for index, (layer, window) in enumerate(zip(decoder.layers, windows, strict=True))
        ),
        norm=reader.norm(decoder.norm),
        lm_head=projection_of(hf_model.get_output_embeddings()),
        rotaries=tuple(_rotary(decoder.rotary_emb, name) for name in names),
    )


def _rotary_names(family: Family, config: Any) -> list[str]:
    """The tables of rotary frequencies that layers go by, each once; at least one."""
    named = [family.rotary(config, layer) for layer in range(config.num_hidden_layers)]
    return list(dict.fromkeys(name for name in named if name is not None)) or [""]


def _rotary(tables: Any, name: str) -> Rotary:
    """One of a model's tables, before any passes over longer texts than it may stretch to."""
    usual = getattr(tables, f"{name}inv_freq")
    return Rotary(
        frequencies=getattr(tables, f"{name}original_inv_freq", usual).float(),
        scale=float(getattr(tables, f"{name}attention_scaling", 1.0)),
    )


def _sizes(family: Family, hf_model: "PreTrainedModel", tables: Any, name: str) -> Sizes:
    config: Any = hf_model.config.get_text_config()
    decoder: Any = hf_model.get_decoder()
    heads, norm = config.num_attention_heads, decoder.norm
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    query_norm = getattr(decoder.layers[0].self_attn, "q_norm", None)
    return Sizes(
        hidden=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        rotary_dim=2 * len(getattr(tables, f"{name}inv_freq")),
        is_layer_norm=family.is_layer_norm,
        norms_whole_vectors=query_norm is not None and query_norm.weight.numel() > head_dim,
        is_parallel=bool(family.is_parallel(config)),
        activation=ACTIVATIONS[getattr(config, family.activation)],
        epsilon=float(getattr(norm, "variance_epsilon", 0.0) or getattr(norm, "eps", 0.0)),
    )


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of one model as its family has them."""

    family: Family
    hf_model: "PreTrainedModel"
    sizes: Sizes

    @property
    def config(self) -> Any:
        return self.hf_model.config.get_text_config()

    def scales(self) -> Scales:
        scales = self.family.scales(self.config)
        rounded = torch.tensor(scales.embedding, dtype=torch.float32).to(self.hf_model.dtype)
        return replace(scales, embedding=float(rounded))

    def layer(self, index: int, layer: Any, window: int | None, rotaries: list[str]) -> Layer:
        attention, network, names = layer.self_attn, layer.mlp, self.family.norms
        query, key, value = self._query_key_value(
            [getattr(attention, name) for name in self.family.query_key_value]
        )
        experts = self._experts(network) if hasattr(network, "experts") else None
        gate, up, down = (None, None, None) if experts else self._network(network)
        mlp_norm = names.attention if self.sizes.is_parallel else names.mlp
        rotary = self.family.rotary(self.config, index)
        return Layer(
            attention_norm=self._norm_of(layer, names.attention),
            query=query,
            key=key,
            value=value,
            query_norm=self._norm_of(attention, "q_norm"),
            key_norm=self._norm_of(attention, "k_norm"),
            output=projection_of(attention.o_proj),
            after_attention_norm=self._norm_of(layer, names.after_attention),
            mlp_norm=self._norm_of(layer, mlp_norm),
            gate=gate,
            up=up,
            down=down,
            experts=experts,
            after_mlp_norm=self._norm_of(layer, names.after_mlp),
            sinks=_float(getattr(attention, "sinks", None)),
            window=window,
            rotary=None if rotary is None else rotaries.index(rotary),
        )

    def norm(self, module: Any) -> Norm:
        weight, bias = module.weight.detach(), getattr(module, "bias", None)
        return Norm(
            weight=weight.float() + self.family.norm_shift,
            bias=None if bias is None else bias.detach().float(),
            saved=weight,
        )

    def _norm_of(self, parent: Any, name: str | None) -> Norm | None:
        module = None if name is None else getattr(parent, name, None)
        return None if module is None else self.norm(module)

    def _query_key_value(self, modules: list[nn.Linear]) -> list[Projection]:
        """All three, also where one module holds them below each other."""
        sizes = self.sizes
        shared = sizes.num_kv_heads * sizes.head_dim
        parts = [projection_of(module) for module in modules]
        if len(parts) == 1:
            parts = parts[0].split([sizes.heads * sizes.head_dim, shared, shared])
        if self.family.is_interleaved:
            parts[:2] = [part.reordered(self._halves(part)) for part in parts[:2]]
        return parts

    def _halves(self, part: Projection) -> Int[np.ndarray, " outputs"]:
        """The outputs of queries or keys as rotary positions turn them here.

        Where those turn neighbours, these become the two halves of a head, in queries and keys
        alike; products of the two stay what they were.
        """
        heads = np.arange(part.weight.shape[0]).reshape(-1, self.sizes.head_dim)
        rotary_dim = self.sizes.rotary_dim
        pairs = heads[:, :rotary_dim].reshape(len(heads), -1, 2).swapaxes(1, 2)
        return np.concatenate([pairs.reshape(len(heads), -1), heads[:, rotary_dim:]], 1).flatten()

    def _network(self, network: Any) -> tuple[Projection, Projection, Projection]:
        """The gate and what it gates, also where one module holds both below each other."""
        parts = [projection_of(getattr(network, name)) for name in self.family.gate_up]
        half = parts[0].weight.shape[0] // 2
        gate, up = parts if len(parts) == 2 else parts[0].split([half, half])
        return gate, up, projection_of(network.down_proj)

    def _experts(self, network: Any) -> Experts:
        routing = self.family.routing(self.config)
        assert routing is not None  # or the table lacks an entry
        router = getattr(network, self.family.router)
        weight = router.weight.detach().float()
        return Experts(
            router=weight,
            router_bias=_float(getattr(router, "bias", None)),
            networks=tuple(
                Expert(*(Projection(*part) for part in parts))
                for parts in matrices(network.experts, len(weight))
            ),
            routing=routing,
        )


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().float()
