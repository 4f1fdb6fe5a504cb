"""Read a target for recipes: sizes, embedding and output head, and the last layers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.heads.layers import HeadSizes
from draftwood.loading import hub
from draftwood.loading.gguf_blocks import open_blocks
from draftwood.models.decoder import Decoder, Layer, Norm, Projection, read_decoder, why_not_lean
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.native.matrix import Blocks
from draftwood_train.recipe import TargetWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MATRICES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


def draft_vocabulary(
    counts: Int[Tensor, " vocab"], size: int, always: frozenset[int] = frozenset()
) -> Int[Tensor, " draft_vocab"]:
    """Select the tokens that a target writes most often, as ascending ids.

    Args:
        counts: how often each token stands in the target's own answers.
        always: tokens that are part of it anyway, such as those that end a text.
    """
    if size < 1:
        raise ValueError(f"a draft vocabulary has at least one token, got {size}")
    weighed = counts.double()
    if always:
        weighed[list(always)] = float("inf")
    order = weighed.sort(descending=True, stable=True).indices
    return order[: min(size, len(counts))].sort().values


def target_weights(
    model: Model, name: str, draft_tokens: Int[Tensor, " draft_vocab"], newest: int = 2
) -> TargetWeights:
    """Sizes, embedding and head of a loaded model, and its newest layers as its name finds them.

    Args:
        name: under which it was loaded.
        draft_tokens: the draft vocabulary.
        newest: how many of its layers to read.

    Raises:
        ValueError: for a model without this ability, or whose layers have another shape.
    """
    require_ability(model, "embeddings_and_head", "training a drafter")
    weights, decoder = model.embeddings_and_head.weights(), decoder_of(name)
    index = torch.full((model.vocab_size,), -1)
    index[draft_tokens] = torch.arange(len(draft_tokens))
    sizes = decoder.sizes
    return TargetWeights(
        layers=model.layers,
        sizes=HeadSizes(
            hidden=sizes.hidden,
            intermediate_size=sizes.intermediate_size,
            heads=sizes.heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            rope_theta=_theta(decoder),
            epsilon=_rounded(sizes.epsilon),
        ),
        embedding=weights.embedding.detach() * decoder.scales.embedding,
        head=weights.head.detach()[draft_tokens].contiguous(),
        draft_tokens=draft_tokens,
        draft_index=index,
        last_layers=[_named(layer) for layer in decoder.layers[-newest:]],
        final_norm=decoder.norm.weight.detach().float(),
    )


def decoder_of(name: str) -> Decoder:
    """The layers of a model by its name, as floats or as the blocks of its file.

    Raises:
        ValueError: for models of another shape than Llama's.
    """
    folder = hub.blocks_of(name)
    if folder is not None:
        return open_blocks(folder).decoder
    hf_model: PreTrainedModel = hub.load_pretrained(name, device="cpu").model
    reason = why_not_lean(hf_model)
    if reason is not None:
        raise ValueError(f"drafters cannot be trained for {name}: {reason}")
    return read_decoder(hf_model)


def _theta(decoder: Decoder) -> float:
    """Base of the rotary embedding, from the second of its frequencies."""
    frequencies = decoder.rotaries[0].frequencies.double()
    pairs = len(frequencies)
    return _rounded(float(frequencies[1]) ** -pairs) if pairs > 1 else 10000.0


def _rounded(number: float) -> float:
    """Round off the digits that float32 added."""
    return float(f"{number:.5g}")


def _named(layer: Layer) -> Mapping[str, Tensor]:
    """The weights of a layer by their names in Transformers; without those it does not have."""
    found: dict[str, Tensor] = {}
    for own, name in MATRICES.items():
        part: Projection | None = getattr(layer, own)
        if part is not None:
            weight = part.weight
            floats = weight.floats() if isinstance(weight, Blocks) else weight
            found[f"{name}.weight"] = floats.detach().float()
    for own, name in NORMS.items():
        norm: Norm | None = getattr(layer, own)
        if norm is not None:
            found[f"{name}.weight"] = norm.weight.detach().float()
    return found
