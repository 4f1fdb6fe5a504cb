"""Describe a model of Transformers in memory as the core describes one in a folder."""

from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from draftwood.models.configuration import ModelConfiguration
from draftwood.models.decoder import Decoder, Rotary
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import decoder_of
from draftwood.models.families import FAMILIES
from draftwood_torch.models.experts import is_mixture
from draftwood_torch.models.state import ModelState
from draftwood_torch.models.support import end_tokens, layer_windows, sees_later

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ConfigurationInMemory(ModelConfiguration):
    """The configuration of a model's text part, whose values Transformers has completed."""

    def __init__(self, hf_model: "PreTrainedModel") -> None:
        self._text: Any = hf_model.config.get_text_config()
        self.architecture = type(hf_model).__name__
        self.family = FAMILIES[self.architecture]
        if self.architecture == "GptOssForCausalLM":
            self.hidden_act = "silu"  # whatever it says

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_text"], name)


def why_not_lean(hf_model: "PreTrainedModel") -> str | None:
    """Say why ``read_decoder`` cannot read this model; None if it can."""
    if any(parameter.is_meta for parameter in hf_model.parameters()):
        return "some of its weights are not in memory"
    return why_other_shape(hf_model)


def why_other_shape(hf_model: "PreTrainedModel") -> str | None:
    """Say why a model is of another shape, wherever its weights are; None if it is not."""
    if type(hf_model).__name__ not in FAMILIES:
        return f"{type(hf_model).__name__} is not one of {', '.join(FAMILIES)}"
    config = ConfigurationInMemory(hf_model)
    reason = config.why_other_shape()
    if reason is not None:
        return reason
    if sees_later(hf_model):
        return "it sees what comes after a token"
    tables = getattr(hf_model.get_decoder(), "rotary_emb", None)
    if not all(
        isinstance(getattr(tables, f"{name}inv_freq", None), Tensor) for name in config.rotary_names
    ):
        return "it has no table of rotary frequencies"
    if hf_model.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"its weights are {hf_model.dtype}"
    return _why_other_modules(dict(hf_model.get_decoder().named_modules()))


def _why_other_modules(modules: dict[str, nn.Module]) -> str | None:
    if any(
        name.endswith("_proj") and type(each) is not nn.Linear for name, each in modules.items()
    ):
        return "its linear layers are quantised or adapted"
    if any(name.endswith(".experts") and not is_mixture(each) for name, each in modules.items()):
        return "its experts are quantised or adapted"
    return None


def described(hf_model: "PreTrainedModel") -> DescribedModel:
    """Describe a model, which shares its weights; raises as ``read_decoder``."""
    return DescribedModel(
        read_decoder(hf_model),
        hf_model.config.get_text_config(),
        end_tokens(hf_model),
        str(hf_model.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        hf_model.device,
        ref(hf_model.get_output_embeddings()),
    )


@torch.no_grad()
def read_decoder(hf_model: "PreTrainedModel") -> Decoder:
    """The parts of a model.

    Raises:
        ValueError: for one that is of another shape; the message says why.
    """
    reason = why_not_lean(hf_model)
    if reason is not None:
        raise ValueError(f"the lean path cannot run this model: {reason}; use TransformersModel")
    config, state = ConfigurationInMemory(hf_model), ModelState(hf_model)
    config.windows = layer_windows(hf_model)
    tables: Any = hf_model.get_decoder().rotary_emb
    rotaries = tuple(_rotary(tables, name) for name in config.rotary_names)
    return decoder_of(config, state, state.shapes, rotaries, Tensor.float)


def _rotary(tables: Any, name: str) -> Rotary:
    """One of a model's tables, before any passes over longer texts than it may stretch to."""
    usual = getattr(tables, f"{name}inv_freq")
    return Rotary(
        frequencies=getattr(tables, f"{name}original_inv_freq", usual).float(),
        scale=float(getattr(tables, f"{name}attention_scaling", 1.0)),
    )
