"""Differences of families of models from Llama's, which has the default of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

ACTIVATIONS = {
    **{"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "relu2": "relu2"},
}
"""Activations of networks: Transformers' names, and ours."""


@dataclass(frozen=True)
class Scales:
    """Factors, terms and bounds that a model has of its own.

    Attributes:
        embedding: of what the embedding gives, as part of it.
        inputs: of the same on its way into the first layer.
        attention: of the scores; None for one by the root of a head's dimensions.
        residual: of what attention and network add to the stream.
        logits: of the logits.
        score_cap: scores stay within it through its hyperbolic tangent; None for no bound.
        logit_cap: logits likewise.
        gate_slope: of gates within the sigmoid of their activation.
        gate_limit: most that gates may be, and what they gate in size; None for no bound.
        gated_shift: what is added to what is gated.
        query_growth: of queries behind the first texts of training, by the logarithm of the
            position in them; 0 for none (Ministral 3).
        growth_every: positions of these first texts.
    """

    embedding: float = 1.0
    inputs: float = 1.0
    attention: float | None = None
    residual: float = 1.0
    logits: float = 1.0
    score_cap: float | None = None
    logit_cap: float | None = None
    gate_slope: float = 1.0
    gate_limit: float | None = None
    gated_shift: float = 0.0
    query_growth: float = 0.0
    growth_every: int = 1


@dataclass(frozen=True)
class LayerNorms:
    """Names of a layer's norms; None where it has none there.

    Attributes:
        attention, mlp: of what attention and network read.
        after_attention, after_mlp: of what they add to the stream.
    """

    attention: str | None = "input_layernorm"
    mlp: str | None = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None


@dataclass(frozen=True)
class Modules:
    """Names of the modules of a layer, and of the norm behind all of them.

    Attributes:
        output, query_norm, key_norm: within attention.
        network: of the gated network, or the experts.
        down: within the gated network, behind what ``Family.gate_up`` names.
        last_norm: behind the layers.
        mixture: what names of experts and their router begin with, within the layer.
        choice_bias: within the mixture; None where experts are chosen by their shares.
        shared: of the expert that all rows go to, within the mixture.
        shares_network: whether that is the network, where there are experts too.
    """

    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    network: str = "mlp"
    down: str = "down_proj"
    last_norm: str = "norm"
    mixture: str = "mlp."
    choice_bias: str | None = None
    shared: str = "shared_expert"
    shares_network: bool = False


@dataclass(frozen=True)
class Tensors:
    """Tensors of a layer besides the weights of its modules.

    Attributes:
        normed_heads: whether queries and keys are normed by the head ("each"), so where the
            configuration says ``use_qk_norm`` ("told"), across all heads ("all"), or not at all.
        biases_inputs: whether queries, keys and values have biases whatever the configuration says.
        biases_output: whether the output of attention has them where the configuration says so.
        biases_norms: whether norms have them.
        has_sinks: whether attention has sinks, and experts and their router biases.
        in_float32: ends of the names of weights that no type rounds: they choose experts.
    """

    normed_heads: Literal["each", "told", "all"] | None = None
    biases_inputs: bool = False
    biases_output: bool = True
    biases_norms: bool = False
    has_sinks: bool = False
    in_float32: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateLayers:
    """Layers that keep something of all rows, or of the last few, in the place of attention.

    Such models run natively or in their own code, not lean.

    Attributes:
        kind: of these layers, as a configuration calls it.
        module: that stands in the place of attention.
        gates_queries: whether queries of the other layers have a gate behind them.
        is_joined: whether one tensor has all that rows are fed and gated by.
    """

    kind: str
    module: str
    gates_queries: bool = False
    is_joined: bool = False


@dataclass(frozen=True)
class Routing:
    """Choice of experts by rows, by the softmax of the router's products.

    Attributes:
        per_row: experts that each row goes to, those with the largest shares.
        sums_to_one: whether the shares are scaled to do so.
        is_sigmoid: whether they are sigmoids of the products instead.
        sum_epsilon: what is added to their sum where it is scaled to one.
        scale: of the shares.
    """

    per_row: int
    sums_to_one: bool
    is_sigmoid: bool = False
    sum_epsilon: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Family:
    """Differences of a class of Transformers from Llama's.

    Each callable is given the configuration of the model, or of its text part.

    Attributes:
        title: what its models are called.
        prefix: of the names of the decoder's tensors.
        norms: of a layer.
        norm_shift: what is added to the weights of norms.
        is_layer_norm: whether norms take off the mean.
        activation: what the configuration calls the network's activation.
        fixed_activation: of ``ACTIVATIONS``, whatever the configuration says; None for what it
            says.
        query_key_value, gate_up: what the modules are called; one that holds several comes alone.
        is_gated: whether networks have gates; else ``gate_up`` names what comes alone.
        router: what the module is called that chooses experts.
        is_interleaved: whether rotary positions turn neighbours, not a head's two halves.
        modules: see there, as for ``tensors`` and ``states``; None where all layers have attention.
        is_unlike: whether layers differ in heads or networks, or have inputs of their own
            (unlike_layers.py). Such models run natively or in their own code, not lean.
        epsilon: what the configuration calls the norms' epsilon.
        inner_size: entries within the gated network; None for what the configuration says.
        is_parallel: whether attention and network read the same norm and are added together.
        rotary: which table of rotary frequencies a layer goes by, as its name begins; None for
            none.
        scales: see there.
        routing: of layers that are mixtures of experts; None where there are none.
        why_not: why a model with such a configuration is of another shape; None if it is not.
    """

    title: str
    norms: LayerNorms = LayerNorms()
    prefix: str = "model."
    norm_shift: float = 0.0
    is_layer_norm: bool = False
    activation: str = "hidden_act"
    fixed_activation: str | None = None
    query_key_value: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    is_gated: bool = True
    router: str = "gate"
    is_interleaved: bool = False
    modules: Modules = Modules()
    tensors: Tensors = Tensors()
    states: StateLayers | None = None
    is_unlike: bool = False
    epsilon: str = "rms_norm_eps"
    inner_size: Callable[[Any], int | None] = lambda config: None
    is_parallel: Callable[[Any], bool] = lambda config: False
    rotary: Callable[[Any, int], str | None] = lambda config, layer: ""
    scales: Callable[[Any], Scales] = lambda config: Scales()
    routing: Callable[[Any], Routing | None] = lambda config: None
    why_not: Callable[[Any], str | None] = lambda config: None

    @property
    def is_lean(self) -> bool:
        """True if its models run as ``LeanModel`` too."""
        return self.states is None and not self.is_unlike
