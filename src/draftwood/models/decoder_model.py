"""What every way to run a Llama-shaped decoder has in common."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from draftwood.interfaces.model import Keep, Output
from draftwood.models.cache import CachePool, LayerShape
from draftwood.models.decoder import Decoder
from draftwood.models.pooled import PoolOfSequences
from draftwood.models.support import end_tokens


class DecoderModel(PoolOfSequences):
    """A Llama-shaped model (Llama, Mistral, Qwen2, Qwen3, StableLM) behind the ``Model`` protocol.

    The same answers as ``TransformersModel``, with less work around the matrix products. What is
    added up (the residual stream, norms, rotary embedding) is kept in float32.

    Args:
        hf_model: the model, in eval mode; it is not changed.
        decoder: its parts.
        cache: type of the keys and values.
        dtype: of hidden states that are handed out; None takes the model's.
    """

    def __init__(
        self,
        hf_model: PreTrainedModel,
        decoder: Decoder,
        cache: torch.dtype,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (decoder.sizes.num_kv_heads, decoder.sizes.head_dim)
        pool = CachePool([LayerShape(shape, shape)] * len(decoder.layers), cache, hf_model.device)
        super().__init__(hf_model.config, pool, {"hidden", "partial", "fork", "ends"})
        self.sizes = decoder.sizes
        self.dtype, self.device = dtype or hf_model.dtype, hf_model.device
        self.end_tokens = end_tokens(hf_model)
        self.depth = len(decoder.layers)
        self.windows = list(dict.fromkeys(layer.window for layer in decoder.layers))

    @property
    def hidden_size(self) -> int:
        return self.sizes.hidden

    @property
    def layers(self) -> int:
        return self.depth


def outputs(
    logits: torch.Tensor, states: dict[int, torch.Tensor], counts: Sequence[int], keep: Keep
) -> list[Output]:
    """What each part gets of logits [rows vocab] and hidden states.

    Where only the logits of a part's last row were kept, it gets those alone.
    """
    if len(counts) == 1:
        return [Output(logits, states)]
    rows = logits.split([1] * len(counts) if keep == "last" else list(counts))
    pieces = {layer: state.split(list(counts)) for layer, state in states.items()}
    return [
        Output(row, {layer: pieces[layer][i] for layer in states}) for i, row in enumerate(rows)
    ]
