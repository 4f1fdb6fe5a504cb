"""Transformer over words and codes, in PyTorch, shaped and stored like a Llama."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-5
THETA = 10_000.0
UNSEEN = -1e4
"""Score of what comes later."""
DEVIATION = 0.02
"""Standard deviation of new weights."""


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a transformer.

    Attributes:
        vocabulary: tokens.
        hidden, intermediate: numbers of a state, and inside an MLP.
        layers, heads, key_heads: of attention; heads share keys and values.
        positions: longest sequence.
        dropout: share of a layer's and the embedding's output that training leaves out.
    """

    vocabulary: int
    hidden: int = 256
    intermediate: int = 704
    layers: int = 5
    heads: int = 4
    key_heads: int = 2
    positions: int = 256
    dropout: float = 0.0

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def configuration(self) -> dict[str, Any]:
        """Content of a config.json that describes the transformer to Transformers."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_size,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": EPSILON,
            "rope_theta": THETA,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": None,
            "dtype": "bfloat16",
        }

    @property
    def facts(self) -> dict[str, Any]:
        return asdict(self)


class CausalAttention(nn.Module):
    """Attention to what came before, with rotary places (Su et al. 2021, 2104.09864)."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        keys = sizes.key_heads * sizes.head_size
        self.q_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, keys, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, keys, bias=False)
        self.o_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Float[Tensor, "batch places hidden"], turn: Tensor) -> Tensor:
        batch, places, _ = x.shape
        size, shared = self.sizes.head_size, self.sizes.heads // self.sizes.key_heads

        def split(each: Tensor) -> Tensor:
            return each.view(batch, places, -1, size).transpose(1, 2)

        queries, keys = _turned(split(self.q_proj(x)), turn), _turned(split(self.k_proj(x)), turn)
        keys, values = (each.repeat_interleave(shared, 1) for each in (keys, split(self.v_proj(x))))
        # PyTorch's own attention takes twice as long on CPUs at this length
        scores = queries @ keys.transpose(2, 3) * size**-0.5
        hidden = torch.full((places, places), UNSEEN, dtype=scores.dtype).triu(1)
        found = (scores + hidden).softmax(-1, dtype=scores.dtype) @ values
        return self.o_proj(found.transpose(1, 2).reshape(batch, places, -1))


class GatedMlp(nn.Module):
    """SwiGLU (Shazeer 2020, 2002.05202)."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: Float[Tensor, "batch places hidden"]) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TransformerLayer(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, EPSILON)
        self.self_attn = CausalAttention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, EPSILON)
        self.mlp = GatedMlp(sizes)
        self.drop = nn.Dropout(sizes.dropout)

    def forward(self, x: Float[Tensor, "batch places hidden"], turn: Tensor) -> Tensor:
        x = x + self.drop(self.self_attn(self.input_layernorm(x), turn))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))


class PictureTransformer(nn.Module):
    """Embedding, layers and norm; the output head is the embedding."""

    turn: Float[Tensor, "2 positions half"]

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList([TransformerLayer(sizes) for _ in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.hidden, EPSILON)
        self.drop = nn.Dropout(sizes.dropout)
        half = torch.arange(0, sizes.head_size, 2) / sizes.head_size
        angles = torch.arange(sizes.positions)[:, None] * THETA**-half
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                into_sum = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * sizes.layers) ** -0.5 if into_sum else 1.0
                nn.init.normal_(weight, std=DEVIATION * scale)

    def forward(self, tokens: Int[Tensor, "batch places"]) -> Float[Tensor, "batch places hidden"]:
        """States behind the final norm."""
        x, turn = self.drop(self.embedding(tokens)), self.turn[:, : tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, turn)
        return self.norm(x)

    def logits(self, states: Float[Tensor, "places hidden"], tokens: slice) -> Tensor:
        """Logits of some tokens."""
        return functional.linear(states, self.embedding.weight[tokens])

    def tensors(self) -> dict[str, Tensor]:
        """Weights by the names that a Llama's have."""
        named = {
            f"model.{name.replace('embedding', 'embed_tokens')}": weight.detach().bfloat16()
            for name, weight in self.named_parameters()
        }
        return dict(sorted(named.items()))


def _turned(x: Float[Tensor, "batch heads places size"], turn: Tensor) -> Tensor:
    """Turn pairs of numbers by their place: the first half's with the second's."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = turn[0].to(x.dtype), turn[1].to(x.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
