"""A decoder of Transformers part by part, read from its modules."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.models.experts import BLOCKS, is_mixture, matrices
from draftwood.models.families import FAMILIES, Family, Routing, Scales
from draftwood.models.support import layer_windows
from draftwood.native.matrix import Blocks, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Activations of gated networks: Transformers' names, and ours."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder, and which of a few forms its parts have.

    Attributes:
        intermediate_size: of the gated network.
        rotary_dim: dimensions of a head that are rotated; the first ones.
        is_layer_norm: whether norms take off the mean (LayerNorm) or not (RMSNorm).
        norms_whole_vectors: whether queries and keys are normed across all heads.
        is_parallel: whether the network reads what attention reads, not what it gave.
        activation: of the gated network; a value of ``ACTIVATIONS``.
        epsilon: of the norms.
    """

    hidden: int
    intermediate_size: int
    heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    is_layer_norm: bool
    norms_whole_vectors: bool
    is_parallel: bool
    activation: str
    epsilon: float


@dataclass(frozen=True, eq=False)
class Norm:
    """Weight and bias of a norm, in float32.

    Attributes:
        saved: the weight as the model has it, which may be without the 1 that belongs to it.
    """

    weight: Float[Tensor, " dim"]
    bias: Float[Tensor, " dim"] | None
    saved: Float[Tensor, " dim"]


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear layer: weights [outputs inputs], as floats or as a GGUF file has them, and bias."""

    weight: Weights
    bias: Float[Tensor, " outputs"] | None

    @classmethod
    def of(cls, module: nn.Module) -> "Projection":
        """Read it from a module."""
        bias: Any = getattr(module, "bias", None)
        return cls(weights_of(module), None if bias is None else bias.detach())

    @property
    def floats(self) -> Float[Tensor, "outputs inputs"]:
        """The weights as floats, which those of a file's blocks are made for this."""
        return self.weight.floats() if isinstance(self.weight, Blocks) else self.weight

    def split(self, sizes: Sequence[int]) -> list["Projection"]:
        """Parts with so many of the outputs, from the first on."""
        ends = list(accumulate(sizes))
        pieces = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return [
            Projection(self.weight[piece], None if self.bias is None else self.bias[piece])
            for piece in pieces
        ]

    def reordered(self, order: Int[Tensor, " outputs"]) -> "Projection":
        """The outputs of these numbers."""
        if self.bias is None:
            return Projection(self.weight[order], None)
        return Projection(self.weight[order], self.bias[order.to(self.bias.device)])

    @classmethod
    def joined(cls, parts: Sequence["Projection"]) -> "Projection":
        """Several layers over the same inputs as one; their outputs are side by side."""
        biases = [part.bias for part in parts if part.bias is not None]
        return cls(
            torch.cat([part.floats for part in parts]), torch.cat(biases) if biases else None
        )


@dataclass(frozen=True, eq=False)
class Expert:
    """One gated network of several."""

    gate: Projection
    up: Projection
    down: Projection


@dataclass(frozen=True, eq=False)
class Experts:
    """A mixture of experts: each row goes to a few of them.

    Attributes:
        router, router_bias: in float32; products with it are the logits of the experts.
        routing: how they are chosen.
    """

    router: Float[Tensor, "experts hidden"]
    router_bias: Float[Tensor, " experts"] | None
    networks: tuple[Expert, ...]
    routing: Routing

    def choose(
        self, rows: Float[Tensor, "rows hidden"]
    ) -> tuple[Float[Tensor, "rows chosen"], Int[Tensor, "rows chosen"]]:
        """Shares and numbers of each row's experts."""
        shares = functional.linear(rows, self.router, self.router_bias).softmax(-1)
        kept, chosen = shares.topk(self.routing.per_row)
        return (kept / kept.sum(-1, keepdim=True) if self.routing.sums_to_one else kept), chosen


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer: attention, then a gated network, or experts in its place.

    Each may come after a norm and before another, and is added to what came in.

    Attributes:
        query_norm, key_norm: norms of queries and keys, where the model has them (Qwen3).
        after_attention_norm, after_mlp_norm: of what is added, where the model has them (Gemma 2).
        sinks: scores, one for each head, that take part in the softmax of attention and stand for
            nothing, in float32; None for none (GPT-OSS).
        window: positions attention reaches back, itself included; None for all.
        rotary: which of the decoder's tables queries and keys are turned by; None for none.
    """

    attention_norm: Norm | None
    query: Projection
    key: Projection
    value: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    output: Projection
    after_attention_norm: Norm | None
    mlp_norm: Norm | None
    gate: Projection | None
    up: Projection | None
    down: Projection | None
    experts: Experts | None
    after_mlp_norm: Norm | None
    sinks: Float[Tensor, " heads"] | None
    window: int | None
    rotary: int | None


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Attributes:
        frequencies: one per rotated pair.
        scale: what rotated queries and keys are multiplied with (1 but for some scalings).
    """

    frequencies: Float[Tensor, " pairs"]
    scale: float

    def __call__(
        self, positions: Tensor
    ) -> tuple[Float[Tensor, "rows pairs"], Float[Tensor, "rows pairs"]]:
        """Cosines and sines at these positions."""
        angles = positions[:, None] * self.frequencies
        return angles.cos() * self.scale, angles.sin() * self.scale


@dataclass(frozen=True, eq=False)
class Decoder:
    """The whole model.

    Attributes:
        scales: that of the embedding is rounded to the model's type.
        rotaries: each of the same dimensions.
    """

    sizes: Sizes
    scales: Scales
    embedding: Weights
    layers: tuple[Layer, ...]
    norm: Norm
    lm_head: Projection
    rotaries: tuple[Rotary, ...]

    def embed(self, tokens: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens hidden"]:
        """Embed tokens, in the model's type."""
        embedded = functional.embedding(tokens, Projection(self.embedding, None).floats)
        return embedded if self.scales.embedding == 1.0 else embedded * self.scales.embedding


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
        lm_head=Projection.of(hf_model.get_output_embeddings()),  # type: ignore[arg-type]
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
            output=Projection.of(attention.o_proj),
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
        parts = [Projection.of(module) for module in modules]
        if len(parts) == 1:
            parts = parts[0].split([sizes.heads * sizes.head_dim, shared, shared])
        if self.family.is_interleaved:
            parts[:2] = [part.reordered(self._halves(part)) for part in parts[:2]]
        return parts

    def _halves(self, part: Projection) -> Tensor:
        """The outputs of queries or keys as rotary positions turn them here.

        Where those turn neighbours, these become the two halves of a head, in queries and keys
        alike; products of the two stay what they were.
        """
        heads = torch.arange(part.weight.shape[0]).unflatten(0, (-1, self.sizes.head_dim))
        rotary_dim = self.sizes.rotary_dim
        pairs = heads[:, :rotary_dim].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1)
        return torch.cat([pairs, heads[:, rotary_dim:]], dim=1).flatten()

    def _network(self, network: Any) -> tuple[Projection, Projection, Projection]:
        """The gate and what it gates, also where one module holds both below each other."""
        parts = [Projection.of(getattr(network, name)) for name in self.family.gate_up]
        half = parts[0].weight.shape[0] // 2
        gate, up = parts if len(parts) == 2 else parts[0].split([half, half])
        return gate, up, Projection.of(network.down_proj)

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
