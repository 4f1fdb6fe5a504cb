"""A decoder part by part, whose numbers are arrays, or tensors of a model of Transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from draftwood.arrays import Int, as_floats
from draftwood.models.family import Routing, Scales
from draftwood.native.matrix import Adapted, Blocks, Weights

Numbers = Any
"""An array, whose uint16 are the bits of bfloat16, or a tensor; shapes are told with each."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder, and which of a few forms its parts have.

    Attributes:
        num_kv_heads, head_dim: of layers that have no ``AttentionShape`` of their own.
        intermediate_size: of the gated network, in most layers.
        rotary_dim: dimensions of a head that are rotated, at most; the first ones.
        is_layer_norm: whether norms take off the mean (LayerNorm) or not (RMSNorm).
        norms_whole_vectors: whether queries and keys are normed across all heads.
        is_parallel: whether the network reads what attention reads, not what it gave.
        activation: of the network, one of the names in ``ACTIVATIONS``.
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
    """Weight and bias of a norm [dim], in float32.

    Attributes:
        saved: the weight as the model has it, which may be without the 1 that belongs to it.
    """

    weight: Numbers
    bias: Numbers | None
    saved: Numbers


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear layer: weights [outputs inputs], as floats or as a GGUF file has them, and bias
    [outputs].
    """

    weight: Weights
    bias: Numbers | None

    @property
    def floats(self) -> Numbers:
        """The weights as floats, which those of a file's blocks are made for this."""
        if isinstance(self.weight, (Blocks, Adapted)):
            return self.weight.floats()
        return as_floats(self.weight) if isinstance(self.weight, np.ndarray) else self.weight

    def split(self, sizes: Sequence[int]) -> list["Projection"]:
        """Parts with so many of the outputs, from the first on."""
        ends = list(accumulate(sizes))
        pieces = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return [
            Projection(self.weight[piece], None if self.bias is None else self.bias[piece])
            for piece in pieces
        ]

    def reordered(self, order: Numbers) -> "Projection":
        """The outputs of these numbers."""
        return Projection(self.weight[order], None if self.bias is None else self.bias[order])


Around = tuple[Projection, Projection | None, Projection | None, Projection]
"""Projections before attention, or what stands in its place, and the one behind it."""


@dataclass(frozen=True, eq=False)
class Expert:
    """One network of several, whose gate stands alone where nothing is gated."""

    gate: Projection
    up: Projection | None
    down: Projection


@dataclass(frozen=True, eq=False)
class Experts:
    """A mixture of experts: each row goes to a few of them.

    Attributes:
        router, router_bias: [experts hidden] and [experts] in float32; products with it are the
            logits of the experts.
        networks: those that are chosen from.
        routing: how they are chosen.
        router_norm: [hidden] in float32, of a norm of the stream that the router reads alone;
            None where it reads what the experts read.
        factors: [experts] in float32, of their shares; None without.
        shared: one more that all rows go to; None without.
        shared_gate: [hidden] in float32; the sigmoid of its product says how much that one counts;
            None where it counts fully.
        choice_bias: [experts] in float32, of shares where experts are chosen alone; None without.
    """

    router: Numbers
    router_bias: Numbers | None
    networks: tuple[Expert, ...]
    routing: Routing
    shared: Expert | None = None
    shared_gate: Numbers | None = None
    choice_bias: Numbers | None = None
    router_norm: Numbers | None = None
    factors: Numbers | None = None


@dataclass(frozen=True, eq=False)
class RunningState:
    """A gated delta rule in the place of attention (Yang et al. 2024, arXiv:2412.06464), or a state
    space model (Mamba-2; Dao and Gu 2024, arXiv:2405.21060).

    Attributes:
        key_heads, value_heads: as many of the latter share each of the former.
        key_dim, value_dim: of a head; a convolution alone has no keys.
        taps: [channels kernel] of the depthwise convolution, the newest row's last.
        decays: [value_heads], factors of steps below 0.
        steps: [value_heads], added to what steps are made of.
        norm: [value_dim], of the outputs; of a state space model [value_heads * value_dim].
        is_tiled: whether heads of values that share a key lie far apart, in what the matrices give
            and in the outputs, and not side by side.
        space: what a state space model has besides; None for the delta rule.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: Numbers
    decays: Numbers | None
    steps: Numbers | None
    norm: Numbers | None
    is_tiled: bool = False
    space: "StateSpace | None" = None

    @property
    def copies(self) -> int:
        """Heads of keys that stand for one, each with a part of its values, to share their work."""
        of_key = self.value_heads // self.key_heads
        most = 1 if self.space is None else max(1, SHARES // self.key_heads)
        return next(count for count in range(most, 0, -1) if of_key % count == 0)

    @classmethod
    def convolution(cls, heads: int, dim: int, taps: Numbers) -> "RunningState":
        """A gated short convolution: nothing but the rows that it looks back at."""
        return cls(heads, heads, 0, dim, taps, None, None, None)

    @property
    def kernel(self) -> int:
        """Rows that the convolution reads."""
        return self.taps.shape[1]

    @property
    def state_size(self) -> int:
        """Numbers of the state."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def row_size(self) -> int:
        """Numbers that a row keeps: what it was fed, its keys, what it put under them, and each
        head's sum of logarithms of decays.
        """
        if not self.key_dim:
            return len(self.taps)
        keys, values = self.copies * self.key_heads * self.key_dim, self.value_heads
        return 3 * keys + values * (2 * self.value_dim + 1)

    @property
    def by_key_heads(self) -> Int[np.ndarray, " channels"]:
        """The channels in the order in which a loop over heads of keys reads them: of each head its
        query, its key, and the values that share them.
        """
        keys = np.arange(2 * self.key_heads * self.key_dim).reshape(2, self.key_heads, -1)
        values = np.arange(self.value_heads * self.value_dim)
        if self.is_tiled:
            values = tiled(self.key_heads, self.value_heads, self.value_dim).argsort()
        parts = keys.swapaxes(0, 1), keys.size + values
        return np.concatenate([part.reshape(self.key_heads, -1) for part in parts], 1).flatten()

    @property
    def shared_out(self) -> Int[np.ndarray, " channels"]:
        """The same with the queries and keys of each of the ``copies`` before its values."""
        order = self.by_key_heads.reshape(self.key_heads, -1)
        keys, values = np.split(order, [2 * self.key_dim], axis=1)
        parts = values.reshape(self.key_heads, self.copies, -1)
        every = np.repeat(keys[:, None], self.copies, axis=1)
        return np.concatenate([every, parts], 2).flatten()


SHARES = 8
"""Heads of keys among which a state space model shares its work, where it has fewer."""


@dataclass(frozen=True, eq=False)
class StateSpace:
    """Parts of a state space model beyond the delta rule's; its rates are its steps.

    Attributes:
        tap_biases: [channels], of the convolution; None without.
        skips: [value_heads], factors of a row's own values in its outputs.
        limits: least and most that a step may be.
        norm_groups: parts of the outputs that are normed apart, behind their gate.
    """

    tap_biases: Numbers | None
    skips: Numbers
    limits: tuple[float, float]
    norm_groups: int


def tiled(key_heads: int, value_heads: int, dim: int) -> Int[np.ndarray, " rows"]:
    """Say which row of heads of values each is where those that share a key lie far apart, not side
    by side.

    Args:
        dim: rows of a head of values.
    """
    heads = np.arange(value_heads).reshape(key_heads, -1).T.flatten()
    return (dim * heads[:, None] + np.arange(dim)).flatten()


@dataclass(frozen=True)
class AttentionShape:
    """Heads of keys and values of a layer, and dimensions of every head, of which the first are
    rotated.
    """

    num_kv_heads: int
    head_dim: int
    rotary_dim: int


@dataclass(frozen=True, eq=False)
class Beside:
    """Norms of a layer whose experts stand beside its network (Gemma 4).

    Attributes:
        experts_norm: of what the experts read.
        after_network_norm, after_experts_norm: of what each of the two adds, before both are.
    """

    experts_norm: Norm
    after_network_norm: Norm
    after_experts_norm: Norm


@dataclass(frozen=True, eq=False)
class LayerInput:
    """The last part of a layer, which adds its own input to the stream; see ``LayerInputs``.

    Attributes:
        gate: of the input, by the stream, behind the network's activation.
        projection: of the gated input.
        norm: of what is added.
    """

    gate: Projection
    projection: Projection
    norm: Norm


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Embeddings of a token for every layer (per-layer embeddings of Gemma 4).

    A part is the normed product of what enters the first layer, plus what is embedded, both times
    the root of a half.

    Attributes:
        size: of a layer's part.
        embedding: [vocabulary layers * size].
        embedding_scale: of what is embedded.
        projection: of what enters the first layer.
        scale: of what it gives.
        norm: [size], of each part of that.
    """

    size: int
    embedding: Weights
    embedding_scale: float
    projection: Projection
    scale: float
    norm: Norm


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer: attention, then a gated network, or experts in its place, or both.

    Each may come after a norm and before another, and is added to what came in.

    Attributes:
        key, value: None where keys and values of an earlier layer are read; values alone are None
            where they are the keys before these are normed.
        query_norm, key_norm: norms of queries and keys, where the model has them (Qwen3).
        after_attention_norm, after_mlp_norm: of what is added, where the model has them (Gemma 2).
        sinks: [heads], scores that take part in the softmax of attention and stand for
            nothing, in float32; None for none (GPT-OSS).
        window: positions attention reaches back, itself included; None for all.
        rotary: which of the decoder's tables queries and keys are turned by; None for none.
        recurrence: in the place of attention; None for attention. Its rows are fed what ``query``
            gives, gated by ``key``; ``value`` gives rates and steps of each head of values.
        attention: heads of this layer; None for the decoder's.
        source: number of the layer whose keys and values it reads; None for its own.
        value_norm: of values, where the model has one.
        beside: norms around experts that stand beside the network; None for none.
        input: what adds the layer's own input; None for none.
        scale: of the stream behind the layer.
    """

    attention_norm: Norm | None
    query: Projection
    key: Projection | None
    value: Projection | None
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
    sinks: Numbers | None
    window: int | None
    rotary: int | None
    recurrence: RunningState | None = None
    attention: AttentionShape | None = None
    source: int | None = None
    value_norm: Norm | None = None
    beside: Beside | None = None
    input: LayerInput | None = None
    scale: float = 1.0

    @property
    def norms(self) -> dict[str, Norm | None]:
        """Its norms by the names that the library has for them."""
        beside, last = self.beside, None if self.input is None else self.input.norm
        own = {name: getattr(self, name) for name in OWN_NORMS}
        return own | ({} if beside is None else vars(beside)) | {"after_input_norm": last}


OWN_NORMS = (
    *("attention_norm", "mlp_norm", "query_norm", "key_norm", "value_norm"),
    *("after_attention_norm", "after_mlp_norm"),
)


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Attributes:
        frequencies: [pairs] in float32, one per rotated pair.
        scale: what rotated queries and keys are multiplied with (1 but for some scalings).
    """

    frequencies: Numbers
    scale: float


@dataclass(frozen=True, eq=False)
class Decoder:
    """The whole model.

    Attributes:
        scales: that of the embedding is rounded to the model's type.
        inputs: of the layers; None where these have none.
    """

    sizes: Sizes
    scales: Scales
    embedding: Weights
    layers: tuple[Layer, ...]
    norm: Norm
    lm_head: Projection
    rotaries: tuple[Rotary, ...]
    inputs: LayerInputs | None = None

    @property
    def recurrences(self) -> list[RunningState]:
        """Running states of layers, in their order."""
        return [layer.recurrence for layer in self.layers if layer.recurrence is not None]
