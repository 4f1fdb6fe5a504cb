"""Models of Transformers without weights."""

from typing import Any

import torch


def skeleton(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Make the model of a configuration without weights.

    Tables of rotary frequencies are computed.
    """
    with torch.device("meta"):
        model: Any = auto_class(config).from_config(config, dtype=dtype)
    _make_rotary(model)
    return model.eval()


def auto_class(config: Any) -> Any:
    """Class of Transformers that makes and reads models of a configuration.

    It is the one of causal language models, or of models with images, whose text part is one, where
    Transformers lists them there alone.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    has_images = type(config) in AutoModelForImageTextToText._model_mapping
    is_listed = type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForImageTextToText if has_images and not is_listed else AutoModelForCausalLM


def _make_rotary(model: Any) -> None:
    """Compute tables of rotary frequencies, which are not stored."""
    for module in model.modules():
        if "Rotary" in type(module).__name__:
            made = type(module)(config=module.config)
            for name, buffer in made.named_buffers(recurse=False):
                module.register_buffer(name, buffer, persistent=False)
