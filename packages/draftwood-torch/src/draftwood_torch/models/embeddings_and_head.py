"""Embedding and output head of any model of Transformers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from draftwood.models.model import EmbeddingsAndHeadWeights
from draftwood.models.requirements import require_part
from draftwood_torch.tensors import as_tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "layer_norm", "layernorm")
"""Names that classes of Transformers have for the norm after the last layer."""


class ModuleEmbeddingsAndHead:
    """Embedding and output head of any model of Transformers.

    The model's own code runs, with hidden states in the place of what its layers give, so that
    whatever it does to logits is done. Its weights are the module's own and cost nothing.
    """

    def __init__(self, hf_model: "PreTrainedModel") -> None:
        self.hf_model = hf_model
        self.decoder: Any = hf_model.get_decoder()
        self.head: Any = hf_model.get_output_embeddings()
        self.norm: Any = final_norm(hf_model)

    def embed(self, tokens: Any) -> Float[Tensor, "tokens dim"]:
        tokens = as_tensor(tokens)
        require_part(tokens, self.hf_model.config.get_text_config().vocab_size)
        with torch.no_grad():
            return self.hf_model.get_input_embeddings()(tokens.to(self.hf_model.device))

    @torch.no_grad()
    def logits(
        self,
        hidden: Any,
        tokens: Any = None,
        normed: bool = False,
    ) -> Float[Tensor, "rows part"]:
        from draftwood_torch.models.submodules import replaced

        ending = _Ending(None if normed else self.norm)
        model, picked = replaced(self.hf_model, self.decoder, ending), tokens
        if tokens is not None:
            tokens = as_tensor(tokens)
            require_part(tokens, self.hf_model.config.get_text_config().vocab_size)
            tokens = tokens.to(self.hf_model.device)
            if type(self.head) is nn.Linear:
                model, picked = replaced(model, self.head, _part_of(self.head, tokens)), None
        rows = as_tensor(hidden).to(self.hf_model.device, self.hf_model.dtype)
        logits = model(inputs_embeds=rows[None], use_cache=False).logits[0]
        return logits if picked is None else logits[:, tokens]

    def weights(self) -> EmbeddingsAndHeadWeights:
        def of(module: Any, name: str) -> Any:
            found = getattr(module, name, None)
            return None if found is None else found.detach()

        read: Any = self.hf_model.get_input_embeddings()
        embedding, shared = of(read, "weight"), getattr(read, "matrix", None)
        # a packed matrix is decoded once
        is_tied = shared is not None and getattr(self.head, "matrix", None) is shared
        return EmbeddingsAndHeadWeights(
            embedding,
            of(self.norm, "weight"),
            embedding if is_tied else of(self.head, "weight"),
            of(self.head, "bias"),
        )


def final_norm(hf_model: "PreTrainedModel") -> nn.Module | None:
    """The norm between the last layer and the output head.

    None unless the model is known to have just that there.
    """
    decoder: Any = hf_model.get_decoder()
    projects = getattr(decoder, "project_in", None) or getattr(decoder, "project_out", None)
    if decoder is hf_model or hf_model.get_output_embeddings() is None or projects is not None:
        return None
    found = (getattr(decoder, name, None) for name in FINAL_NORMS)
    return next((norm for norm in found if isinstance(norm, nn.Module)), None)


@dataclass
class _Given(BaseModelOutputWithPast):
    """Output of a decoder, whose class may have further fields: they are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Ending(nn.Module):
    """In the place of a decoder: what it reads is what its last layer gave."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, *args: object, inputs_embeds: Tensor, **kwargs: object) -> _Given:
        rows = inputs_embeds if self.norm is None else self.norm(inputs_embeds)
        return _Given(last_hidden_state=rows)


def _part_of(head: nn.Linear, tokens: Tensor) -> nn.Linear:
    """An output head for these tokens alone."""
    part = nn.Linear(head.in_features, len(tokens), bias=False, device="meta")
    part.weight = nn.Parameter(head.weight[tokens], requires_grad=False)
    if head.bias is not None:
        part.bias = nn.Parameter(head.bias[tokens], requires_grad=False)
    return part
