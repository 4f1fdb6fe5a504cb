"""Compute the size of a model from its configuration alone."""

from draftwood.loading.folders import understood
from draftwood.loading.hub import described
from draftwood.loading.skeleton import skeleton
from draftwood.models.size import ModelSize


def size_of(name: str) -> ModelSize:
    """The size of a model by its name; no weights are fetched where its configuration lies apart.

    Raises:
        ValueError: where the name or the configuration says nothing; ``hub.described`` raises it.
    """
    from transformers import AutoConfig

    folder = described(name)
    with understood(folder):
        config = AutoConfig.from_pretrained(folder)
        model = skeleton(config)
    text = config.get_text_config()
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
