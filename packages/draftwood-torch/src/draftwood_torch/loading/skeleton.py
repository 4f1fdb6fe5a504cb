"""Models of Transformers without weights."""

from typing import Any

import torch


def skeleton(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Make the model of a configuration without weights.

    Tables of rotary frequencies are computed.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _make_rotary(model)
    return model.eval()


def _make_rotary(model: Any) -> None:
    """Compute tables of rotary frequencies, which are not stored."""
    for module in model.modules():
        if "Rotary" in type(module).__name__:
            made = type(module)(config=model.config)
            for name, buffer in made.named_buffers(recurse=False):
                module.register_buffer(name, buffer, persistent=False)
