"""Llama- and Qwen-shaped decoder in PyTorch, which reads a clean text and noisy copies in one pass.

Parameters have the names that Transformers gives them, but for the embedding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

EMBEDDING = "model.embed_tokens.weight"
PART = 64
"""Rows whose attention is computed at once: keys that none of them sees cost nothing."""


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder, as Transformers names them in config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    has_biases: bool  # of queries, keys and values
    has_head_norms: bool  # of queries and keys

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "DecoderSizes":
        """Read the sizes of a Llama, Qwen2 or Qwen3.

        Raises:
            ValueError: for another kind of model.
        """
        kind = config.get("model_type")
        if kind not in ("llama", "qwen2", "qwen3"):
            raise ValueError(
                f"conversion trains models of type llama, qwen2 or qwen3, not {kind}; convert one"
                " of these"
            )
        heads = config["num_attention_heads"]
        rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        lacking = {
            "scaled rotary embeddings": rope_type != "default",
            "another activation than silu": config.get("hidden_act", "silu") != "silu",
            "biases in its network or behind its attention": config.get("mlp_bias")
            or (kind == "llama" and config.get("attention_bias")),
        }
        for what, there in lacking.items():
            if there:
                raise ValueError(f"the model has {what}, which conversion does not train")
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            tie_word_embeddings=bool(config.get("tie_word_embeddings")),
            has_biases=kind == "qwen2" or bool(config.get("attention_bias")),
            has_head_norms=kind == "qwen3",
        )


class RootNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, dim: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(dim)), epsilon

    def forward(self, rows: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        return functional.rms_norm(rows, rows.shape[-1:], self.weight.to(rows.dtype), self.epsilon)


@dataclass(frozen=True, eq=False)
class Sight:
    """Places that rows of the clean text and of noisy copies see.

    Attributes:
        clean: of the clean text, by rows of the clean text.
        noisy: of the clean text, and behind it of the own copy, by rows of a noisy copy.
    """

    clean: Bool[Tensor, "places places"]
    noisy: Bool[Tensor, "places both"]


class StreamAttention(nn.Module):
    """Attention of the clean text to itself, of each noisy copy to the clean text and itself."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes, dim = sizes, sizes.head_dim
        queries, keys = sizes.num_attention_heads * dim, sizes.num_key_value_heads * dim
        self.q_proj = nn.Linear(sizes.hidden_size, queries, bias=sizes.has_biases)
        self.k_proj = nn.Linear(sizes.hidden_size, keys, bias=sizes.has_biases)
        self.v_proj = nn.Linear(sizes.hidden_size, keys, bias=sizes.has_biases)
        self.o_proj = nn.Linear(queries, sizes.hidden_size, bias=False)
        if sizes.has_head_norms:
            self.q_norm = RootNorm(dim, sizes.rms_norm_eps)
            self.k_norm = RootNorm(dim, sizes.rms_norm_eps)

    def forward(
        self,
        rows: Float[Tensor, "texts streams places dim"],
        turns: tuple[Tensor, Tensor],
        sight: Sight,
    ) -> Float[Tensor, "texts streams places dim"]:
        query, key = self.heads(self.q_proj(rows)), self.heads(self.k_proj(rows))
        value = self.heads(self.v_proj(rows))
        if self.sizes.has_head_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotated(query, *turns), rotated(key, *turns)
        copies = rows.shape[1] - 1
        mixed = [_in_parts(query[:, :1], [(key[:, :1], value[:, :1])], sight.clean)]
        if copies:
            clean = [each[:, :1].expand(-1, copies, -1, -1, -1) for each in (key, value)]
            own = (key[:, 1:], value[:, 1:])
            mixed.append(_in_parts(query[:, 1:], [(clean[0], clean[1]), own], sight.noisy))
        return self.o_proj(torch.cat(mixed, dim=1).transpose(2, 3).flatten(3))

    def heads(self, rows: Tensor) -> Float[Tensor, "texts streams heads places head_dim"]:
        """Rows by heads."""
        return rows.unflatten(-1, (-1, self.sizes.head_dim)).transpose(2, 3)


def _in_parts(
    query: Float[Tensor, "texts streams heads rows dim"],
    sources: Sequence[tuple[Tensor, Tensor]],
    seen: Bool[Tensor, "rows keys"],
) -> Float[Tensor, "texts streams heads rows dim"]:
    """Attention by some rows at a time, over the keys alone that one of them sees.

    Args:
        sources: keys and values of places, one behind the other in ``seen``.
    """
    places = query.shape[3]
    found = []
    for begin in range(0, places, PART):
        part = seen[begin : begin + PART]
        kept, masks = list[tuple[Tensor, Tensor]](), list[Tensor]()
        for (key, value), own in zip(sources, part.split(places, dim=1), strict=True):
            used = own.any(0).nonzero()[:, 0]
            if len(used):
                span = slice(int(used[0]), int(used[-1]) + 1)
                kept.append((key[..., span, :], value[..., span, :]))
                masks.append(own[:, span])
        keys, values = (torch.cat(each, dim=3) for each in zip(*kept, strict=True))
        found.append(_mixed(query[..., begin : begin + PART, :], keys, values, torch.cat(masks, 1)))
    return torch.cat(found, dim=3)


def _mixed(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    flat = (each.flatten(0, 1) for each in (query, key, value))
    found = functional.scaled_dot_product_attention(
        *flat, attn_mask=seen, enable_gqa=query.shape[2] != key.shape[2]
    )
    return found.unflatten(0, query.shape[:2])


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys turned by their positions."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat([-second, first], dim=-1) * sines


class GatedNetwork(nn.Module):
    """Gated network of a layer (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.up_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class StreamLayer(nn.Module):
    """Decoder layer as Llama's (Touvron et al. 2023, arXiv:2302.13971), for all rows."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.input_layernorm = RootNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.self_attn = StreamAttention(sizes)
        self.post_attention_layernorm = RootNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = GatedNetwork(sizes)

    def forward(self, rows: Tensor, turns: tuple[Tensor, Tensor], sight: Sight) -> Tensor:
        rows = rows + self.self_attn(self.input_layernorm(rows), turns, sight)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class StreamDecoder(nn.Module):
    """Decoder whose rows are a clean text and noisy copies of it.

    Args:
        sizes: of its layers and its vocabulary.
    """

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Parameter(torch.zeros(sizes.vocab_size, sizes.hidden_size))
        self.layers = nn.ModuleList(StreamLayer(sizes) for _ in range(sizes.num_hidden_layers))
        self.norm = RootNorm(sizes.hidden_size, sizes.rms_norm_eps)
        if not sizes.tie_word_embeddings:
            self.lm_head = nn.Parameter(torch.zeros(sizes.vocab_size, sizes.hidden_size))

    def forward(
        self, tokens: Int[Tensor, "texts streams places"], sight: Sight
    ) -> Float[Tensor, "texts streams places dim"]:
        """States behind the last norm, which ``logits`` reads."""
        rows = functional.embedding(tokens, self.embedding)
        if torch.is_autocast_enabled("cpu"):
            rows = rows.to(torch.get_autocast_dtype("cpu"))
        turns = self.turns(torch.arange(tokens.shape[-1]), rows)
        for layer in self.layers:
            rows = layer(rows, turns, sight)
        return self.norm(rows)

    def logits(self, states: Float[Tensor, "... dim"]) -> Float[Tensor, "... vocab"]:
        head = self.embedding if self.sizes.tie_word_embeddings else self.lm_head
        return functional.linear(states, head)

    def turns(self, positions: Int[Tensor, "... places"], like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding (Su et al. 2021, arXiv:2104.09864)."""
        dim = self.sizes.head_dim
        powers = torch.arange(0, dim, 2, device=like.device, dtype=torch.float32) / dim
        angles = positions.to(like.device).float()[..., None] / self.sizes.rope_theta**powers
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def named(self) -> dict[str, Tensor]:
        """Weights by Transformers' names."""
        return {_outside(name): each for name, each in self.state_dict().items()}

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights by Transformers' names.

        Raises:
            ValueError: where one is missing or has another shape.
        """
        own = {}
        for name, each in self.state_dict().items():
            given = weights.get(_outside(name))
            if given is None or given.shape != each.shape:
                came = "nothing" if given is None else str(tuple(given.shape))
                raise ValueError(
                    f"the weights need {_outside(name)} of shape {tuple(each.shape)}, {came} came;"
                    " take the folder of the model that the config describes"
                )
            own[name] = given.to(each.dtype)
        self.load_state_dict(own)


def _outside(name: str) -> str:
    """Name that Transformers gives a parameter."""
    known = {"embedding": EMBEDDING, "lm_head": "lm_head.weight"}
    return known.get(name, f"model.{name}")


def random_decoder(sizes: DecoderSizes, deviation: float, seed: int = 0) -> StreamDecoder:
    """A decoder whose matrices are random, by a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = StreamDecoder(sizes)
        for weight in decoder.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=deviation)
    return decoder
