"""What a Llama-shaped decoder of Transformers consists of, read from its modules."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwood.models.support import layer_windows
from draftwood.native.matrix import Blocks, Weights

FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "StableLmForCausalLM",
)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder.

    Attributes:
        inner: of the gated network.
        rotary_dim: dimensions of a head that are rotated; the first ones.
        centred: whether norms take off the mean (LayerNorm) or not (RMSNorm).
        epsilon: of the norms.
    """

    hidden: int
    intermediate_size: int
    heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    is_layer_norm: bool
    epsilon: float


@dataclass(frozen=True, eq=False)
class Norm:
    """Weight and bias of a norm, in float32."""

    weight: Float[Tensor, " dim"]
    bias: Float[Tensor, " dim"] | None


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear layer: weights [outputs inputs], as floats or as a GGUF file has them, and bias."""

    weight: Weights
    bias: Float[Tensor, " outputs"] | None

    @classmethod
    def of(cls, module: nn.Module) -> "Projection":
        """That of a module."""
        bias: Any = getattr(module, "bias", None)
        return cls(weights_of(module), None if bias is None else bias.detach())

    @property
    def floats(self) -> Float[Tensor, "outputs inputs"]:
        """The weights of a model that was loaded as floats."""
        assert isinstance(self.weight, Tensor)  # blocks are for the native path alone
        return self.weight

    @classmethod
    def joined(cls, parts: Sequence["Projection"]) -> "Projection":
        """Several layers over the same inputs as one; their outputs are side by side."""
        biases = [part.bias for part in parts if part.bias is not None]
        return cls(
            torch.cat([part.floats for part in parts]), torch.cat(biases) if biases else None
        )


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer: attention, then a gated network.

    Each comes after a norm and is added to what came in.

    Attributes:
        query_norm, key_norm: norms of each head's query and key, where the model has them (Qwen3).
        window: positions attention reaches back, itself included; None for all.
    """

    attention_norm: Norm
    query: Projection
    key: Projection
    value: Projection
    query_norm: Norm | None
    key_norm: Norm | None
    output: Projection
    mlp_norm: Norm
    gate: Projection
    up: Projection
    down: Projection
    window: int | None


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
    """The whole model."""

    sizes: Sizes
    embedding: Weights
    layers: tuple[Layer, ...]
    norm: Norm
    lm_head: Projection
    rotary: Rotary


BLOCKS = "blocks"
"""Attribute of modules whose weights lie in a GGUF file; they have no ``weight``."""


def weights_of(module: nn.Module) -> Weights:
    """What a linear layer or an embedding is made of."""
    blocks: Blocks | None = getattr(module, BLOCKS, None)
    if blocks is not None:
        return blocks
    weight: Any = module.weight
    return weight.detach()


def why_not_lean(hf_model: PreTrainedModel) -> str | None:
    """Why this model is not of the shape that ``read_decoder`` knows; None if it is."""
    config: Any = hf_model.config
    if type(hf_model).__name__ not in FAMILIES:
        return f"{type(hf_model).__name__} is not one of {', '.join(FAMILIES)}"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}, not silu"
    if getattr(config, "use_parallel_residual", False) or getattr(config, "qk_layernorm", False):
        return "it runs attention and network side by side, or norms whole queries"
    if not isinstance(
        getattr(getattr(hf_model.get_decoder(), "rotary_emb", None), "inv_freq", None), Tensor
    ):
        return "it has no single table of rotary frequencies"
    if hf_model.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"its weights are {hf_model.dtype}"
    if any(parameter.is_meta for parameter in hf_model.parameters()):
        return "some of its weights are not in memory"
    projections = (module for name, module in hf_model.named_modules() if name.endswith("_proj"))
    if any(type(module) is not nn.Linear for module in projections):
        return "its linear layers are quantised or adapted"
    return None


@torch.no_grad()
def read_decoder(hf_model: PreTrainedModel) -> Decoder:
    """The parts of a model.

    Raises:
        ValueError: for one that is of another shape; the message says why.
    """
    reason = why_not_lean(hf_model)
    if reason is not None:
        raise ValueError(f"the lean path cannot run this model: {reason}; use TransformersModel")
    decoder: Any = hf_model.get_decoder()
    windows = layer_windows(hf_model)
    return Decoder(
        sizes=_sizes(hf_model),
        embedding=weights_of(decoder.embed_tokens),
        layers=tuple(
            _layer(layer, window) for layer, window in zip(decoder.layers, windows, strict=True)
        ),
        norm=_norm(decoder.norm),
        lm_head=Projection.of(hf_model.get_output_embeddings()),  # type: ignore[arg-type]
        rotary=Rotary(
            frequencies=decoder.rotary_emb.inv_freq.float(),
            scale=float(getattr(decoder.rotary_emb, "attention_scaling", 1.0)),
        ),
    )


def _sizes(hf_model: PreTrainedModel) -> Sizes:
    config: Any = hf_model.config
    decoder: Any = hf_model.get_decoder()
    return Sizes(
        hidden=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        rotary_dim=2 * len(decoder.rotary_emb.inv_freq),
        is_layer_norm=isinstance(decoder.norm, nn.LayerNorm),
        epsilon=float(
            getattr(decoder.norm, "variance_epsilon", 0.0) or getattr(decoder.norm, "eps", 0.0)
        ),
    )


def _layer(layer: Any, window: int | None) -> Layer:
    attention, network = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        query=Projection.of(attention.q_proj),
        key=Projection.of(attention.k_proj),
        value=Projection.of(attention.v_proj),
        query_norm=_norm(query_norm) if query_norm is not None else None,
        key_norm=_norm(key_norm) if key_norm is not None else None,
        output=Projection.of(attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate=Projection.of(network.gate_proj),
        up=Projection.of(network.up_proj),
        down=Projection.of(network.down_proj),
        window=window,
    )


def _norm(module: Any) -> Norm:
    bias = getattr(module, "bias", None)
    return Norm(module.weight.detach().float(), None if bias is None else bias.detach().float())
