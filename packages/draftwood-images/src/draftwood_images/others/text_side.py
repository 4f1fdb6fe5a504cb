"""The part of a multimodal model that writes tokens, as a causal language model of its own."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from draftwood.models.model import Model
from draftwood.optional import backend


class TokenWriter(PreTrainedModel):
    """Decoder layers of a multimodal model, with an embedding and an output head of all tokens.

    Args:
        decoder: its text model, whose embedding is left aside.
        embedding: of all tokens, those of pictures among them.
        head: logits [batch rows vocab] after states [batch rows dim].
        vocabulary: entries of a row of logits.
    """

    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(
        self, decoder: PreTrainedModel, embedding: nn.Module, head: nn.Module, vocabulary: int
    ) -> None:
        super().__init__(deepcopy(decoder.config))
        self.model, self.embedding, self.lm_head = decoder, embedding, head
        self.vocabulary = vocabulary
        self.config.vocab_size = vocabulary
        self.eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **more: Any,
    ) -> CausalLMOutputWithPast:
        """Logits after tokens, as causal language models of Transformers give them."""
        if inputs_embeds is None:
            inputs_embeds = self.embedding(input_ids)
        outputs = self.model(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            **more,
        )
        states = outputs.last_hidden_state
        if isinstance(logits_to_keep, Tensor) or logits_to_keep:
            kept = (
                slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            )
            states = states[:, kept]
        return CausalLMOutputWithPast(
            logits=self.lm_head(states),
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def writing_model(
    decoder: PreTrainedModel, embedding: nn.Module, head: nn.Module, vocabulary: int
) -> Model:
    """The text side of a multimodal model behind the protocol of models."""
    writer = TokenWriter(decoder, embedding, head, vocabulary)
    return backend("a picture model of Transformers").general_model(writer)


def pixels_of(picture: Tensor) -> Any:
    """Pixels [height width 3] of 8 bits of a picture [3 height width] from -1 to 1."""
    levels = picture.detach().float().clamp(-1, 1).permute(1, 2, 0)
    return ((levels + 1) * 127.5).round().to(torch.uint8).cpu().numpy()
