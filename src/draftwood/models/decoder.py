"""What a Llama-shaped decoder of Transformers consists of, read from its modules."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwood.models.linears import Kind, Linear, linear
from draftwood.models.steps import Sizes
from draftwood.models.support import SLIDING

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "StableLmForCausalLM")


@dataclass(frozen=True, eq=False)
class Norm:
    """Weight and bias of a norm, in float32; a bias of zero where it has none."""

    weight: Float[Tensor, " dim"]
    bias: Float[Tensor, " dim"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer: attention, then a gated network, each behind a norm and added to what came in.

    Attributes:
        query_norm, key_norm: norms of each head's query and key, where the model has them (Qwen3).
        window: positions attention reaches back, itself included; None for all.
    """

    attention_norm: Norm
    query_key_value: Linear
    query_norm: Norm
    key_norm: Norm
    output: Linear
    network_norm: Norm
    gate_up: Linear
    down: Linear
    window: int | None


@dataclass(frozen=True, eq=False)
class Decoder:
    """The whole model.

    Attributes:
        frequencies: of the rotary position embedding, one per rotated pair.
        rotary_scale: what rotated queries and keys are multiplied with (1 but for some scalings).
    """

    sizes: Sizes
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Norm
    head: Linear
    frequencies: Float[Tensor, " pairs"]
    rotary_scale: float


def why_not_lean(hf_model: PreTrainedModel) -> str | None:
    """Why this model is not of the shape that ``read_decoder`` knows; None if it is."""
    config: Any = hf_model.config
    if type(hf_model).__name__ not in FAMILIES:
        return f"{type(hf_model).__name__} is not one of {', '.join(FAMILIES)}"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}, not silu"
    if getattr(config, "use_parallel_residual", False) or getattr(config, "qk_layernorm", False):
        return "it runs attention and network side by side, or norms whole queries"
    if not isinstance(getattr(getattr(hf_model.get_decoder(), "rotary_emb", None), "inv_freq", None), Tensor):
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
def read_decoder(hf_model: PreTrainedModel, kind: Kind) -> Decoder:
    """The parts of a model for which ``why_not_lean`` has nothing to say, with linear layers of this kind."""
    decoder: Any = hf_model.get_decoder()
    window = getattr(hf_model.config, "sliding_window", None)
    kinds = getattr(hf_model.config, "layer_types", None) or [SLIDING] * len(decoder.layers)
    windows = [window if kind == SLIDING else None for kind in kinds]
    return Decoder(
        sizes=_sizes(hf_model, kind),
        embedding=decoder.embed_tokens.weight.detach(),
        layers=tuple(_layer(layer, window, kind) for layer, window in zip(decoder.layers, windows, strict=True)),
        norm=_norm(decoder.norm),
        head=_joined(kind, hf_model.get_output_embeddings()),
        frequencies=decoder.rotary_emb.inv_freq.float(),
        rotary_scale=float(getattr(decoder.rotary_emb, "attention_scaling", 1.0)),
    )


def _sizes(hf_model: PreTrainedModel, kind: Kind) -> Sizes:
    config: Any = hf_model.config
    decoder: Any = hf_model.get_decoder()
    first = decoder.layers[0]
    return Sizes(
        kind=kind,
        dtype=hf_model.dtype,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        rotary_dim=2 * len(decoder.rotary_emb.inv_freq),
        centred=isinstance(decoder.norm, nn.LayerNorm),
        head_norms=getattr(first.self_attn, "q_norm", None) is not None,
        epsilon=float(getattr(decoder.norm, "variance_epsilon", 0.0) or getattr(decoder.norm, "eps", 0.0)),
    )


def _layer(layer: Any, window: int | None, kind: Kind) -> Layer:
    attention, network = layer.self_attn, layer.mlp
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        query_key_value=_joined(kind, attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_norm(getattr(attention, "q_norm", None)),
        key_norm=_norm(getattr(attention, "k_norm", None)),
        output=_joined(kind, attention.o_proj),
        network_norm=_norm(layer.post_attention_layernorm),
        gate_up=_joined(kind, network.gate_proj, network.up_proj),
        down=_joined(kind, network.down_proj),
        window=window,
    )


def _joined(kind: Kind, *modules: Any) -> Linear:
    return linear(kind, [module.weight for module in modules], [module.bias for module in modules])


def _norm(module: Any) -> Norm:
    """Weights of a norm; of one that is not there as well, since compiled steps take arguments they do not use."""
    if module is None:
        return Norm(torch.ones(1), torch.zeros(1))
    weight = module.weight.detach().float()
    bias = getattr(module, "bias", None)
    return Norm(weight, torch.zeros_like(weight) if bias is None else bias.detach().float())
