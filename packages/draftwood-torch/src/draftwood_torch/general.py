"""The way to run any model of Transformers that can run trees."""

from typing import TYPE_CHECKING

from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.recurrences.hybrid import HybridModel
from draftwood_torch.recurrences.known import recurrent_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def general_model(hf_model: "PreTrainedModel") -> TransformersModel:
    """The model behind the ``Model`` protocol, whether or not layers keep a running state.

    Raises:
        ValueError: for models that cannot run trees; the message says which and why.
    """
    # what is no model of Transformers is refused by either
    modules = getattr(hf_model, "modules", None)
    is_hybrid = modules is not None and bool(recurrent_layers(hf_model))
    return HybridModel(hf_model) if is_hybrid else TransformersModel(hf_model)
