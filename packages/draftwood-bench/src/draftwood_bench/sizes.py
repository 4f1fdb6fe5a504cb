"""Sizes of models, by which passes are priced: computed from a configuration alone."""

from dataclasses import dataclass, replace
from math import isfinite, sqrt


@dataclass(frozen=True)
class ModelSize:
    """Weights that a pass reads and multiplies.

    Attributes:
        parameters: that each row is multiplied with: all matrices and the output head, without the
            rows of embeddings that are only looked up; of a mixture of experts, those in use.
        bits: of a weight, scales included.
        layers: of the decoder.
        cache_bytes: of keys and values for each token of context.
        attention: operations of attention for each row and each token of context.

    Raises:
        ValueError: for sizes that are not above 0, or without end.
    """

    parameters: float
    bits: float = 16.0
    layers: int = 32
    cache_bytes: float = 0.0
    attention: float = 0.0

    def __post_init__(self) -> None:
        sizes, more = (self.parameters, self.bits, self.layers), (self.cache_bytes, self.attention)
        if not (all(map(isfinite, sizes + more)) and min(sizes) > 0 and min(more) >= 0):
            raise ValueError(
                "a model needs parameters, bits and layers above 0, got"
                f" {self.parameters:g}, {self.bits:g} and {self.layers}"
            )

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bits / 8


def usual_layers(parameters: float) -> int:
    """As models of this size usually have: 32 with 7 billion parameters."""
    return max(2, round(32 * (parameters / 7e9) ** 0.4))


def size_for(parameters: float, bits: float = 16.0, layers: int | None = None) -> ModelSize:
    """Estimate a size from a number of parameters: each layer has 12 times its width squared, and
    every head of attention has keys and values of its own.

    Args:
        layers: None takes as many as usual.

    Raises:
        ValueError: as ``ModelSize``.
    """
    size = ModelSize(parameters, bits, layers or usual_layers(parameters))
    wide = 2 * 2.0 * size.layers * sqrt(size.parameters / (12 * size.layers))
    return replace(size, cache_bytes=wide, attention=wide)  # as in ``size_of``


def size_of(name: str) -> ModelSize:
    """The size of a model by its name; no weights are fetched where its configuration lies apart.

    Raises:
        ValueError: where the name or the configuration says nothing.
    """
    from draftwood.loading.weights import skeleton_of

    model = skeleton_of(name)
    text = model.config.get_text_config()
    experts = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None) or 1
    share = (getattr(text, "num_experts_per_tok", None) or 1) / experts
    parameters = sum(
        each.numel() * (share if each.dim() == 3 else 1)
        for each in model.parameters()
        if each.dim() >= 2
    )
    looked_up = model.get_input_embeddings().weight
    if looked_up is not model.get_output_embeddings().weight:
        parameters -= looked_up.numel()
    layers, heads = text.num_hidden_layers, text.num_attention_heads
    kept = getattr(text, "num_key_value_heads", None) or heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelSize(
        parameters,
        16.0,
        layers,
        cache_bytes=2 * 2.0 * layers * kept * width,  # a key and a value of two bytes each
        attention=2 * 2.0 * layers * heads * width,  # a multiplication and an addition with both
    )
