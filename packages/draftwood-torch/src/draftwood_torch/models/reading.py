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
from draftwood.models.shapes import tensor_shapes
from draftwood_torch.models.experts import is_mixture
from draftwood_torch.models.state import ModelState
from draftwood_torch.models.support import (
    end_tokens,
    holds_no_weights,
    layer_windows,
    sees_later,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ConfigurationInMemory(ModelConfiguration):
    """The configuration of a model's text part, whose values Transformers has completed."""

    def __init__(self, hf_model: "PreTrainedModel") -> None:
        self._text: Any = hf_model.config.get_text_config()
        self.architecture = type(hf_model).__name__
        self.family = FAMILIES[self.architecture]
        if self.family.is_unlike:  # Transformers keeps to itself what differs by layers
            vars(self).update(self._text.to_dict())
            self.num_experts = self.num_experts if self.enable_moe_block else None

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_text"], name)


def why_not_lean(hf_model: "PreTrainedModel") -> str | None:
    """Say why ``read_decoder`` cannot read this model; None if it can."""
    if holds_no_weights(hf_model):
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
    tables = _tables(hf_model)
    if not all(
        isinstance(getattr(tables, f"{name}inv_freq", None), Tensor) for name in config.rotary_names
    ):
        return "it has no table of rotary frequencies"
    if hf_model.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"its weights are {hf_model.dtype}"
    return _why_other_modules(hf_model) or _why_other_weights(hf_model, config)


def _why_other_modules(hf_model: "PreTrainedModel") -> str | None:
    """Say which modules compute something else than those of their class; None if none do."""
    modules = dict(hf_model.get_decoder().named_modules())
    linear = [each for name, each in modules.items() if name.endswith("_proj")]
    if any(type(each) is not nn.Linear for each in (*linear, hf_model.get_output_embeddings())):
        return "its linear layers are quantised or adapted"
    if any(name.endswith(".experts") and not is_mixture(each) for name, each in modules.items()):
        return "its experts are quantised or adapted"
    # whose own forward may be compiled
    parts = [each for each in hf_model.modules() if each is not hf_model]
    if not all(map(_is_known, parts)) or any("forward" in vars(each) for each in parts):
        return "some of its modules are adapted or replaced"
    if any(map(_is_hooked, hf_model.modules())):
        return "its modules have forward hooks"
    return None


def _is_known(module: nn.Module) -> bool:
    """True if a module is of a class of PyTorch or Transformers."""
    return type(module).__module__.split(".")[0] in ("torch", "transformers")


def _is_hooked(module: nn.Module) -> bool:
    """True if somebody's hook may change what a module reads or gives.

    Those of Transformers record hidden states, or serve training.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(
        str(getattr(hook, "__module__", "")).split(".")[0] != "transformers" for hook in hooks
    )


def _why_other_weights(hf_model: "PreTrainedModel", config: ConfigurationInMemory) -> str | None:
    """Say which weights are not those that the configuration asks for; None if all are."""
    if any(type(each) not in (nn.Parameter, Tensor) for each in hf_model.parameters()):
        return "its weights are quantised or spread over devices"
    wanted, found = tensor_shapes(config), ModelState(hf_model).shapes
    other = [name for name, shape in wanted.items() if found.get(name) != shape]
    return f"its {other[0]} is not the one of its configuration" if other else None


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
    tables = _tables(hf_model)
    rotaries = tuple(_rotary(tables, name) for name in config.rotary_names)
    return decoder_of(config, state, state.shapes, rotaries, Tensor.float)


def _tables(hf_model: "PreTrainedModel") -> Any:
    """The module with a model's tables of rotary frequencies; None without one."""
    decoder = hf_model.get_decoder()
    return getattr(decoder, "rotary_emb", None) or getattr(decoder, "pos_emb", None)


def _rotary(tables: Any, name: str) -> Rotary:
    """One of a model's tables, before any passes over longer texts than it may stretch to."""
    usual = getattr(tables, f"{name}inv_freq")
    return Rotary(
        frequencies=getattr(tables, f"{name}original_inv_freq", usual).float(),
        scale=float(getattr(tables, f"{name}attention_scaling", 1.0)),
    )
