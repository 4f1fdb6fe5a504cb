"""LoRA adapters as PEFT makes and saves them."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

SEED = 7


def save_adapter(
    folder: Path, hf_model: Any, targets: list[str], size: float = 0.3, **settings: Any
) -> Any:
    """Save an adapter with random matrices for a model.

    Args:
        targets: ends of the names of the modules that it changes.
        size: spread of its matrices.
        settings: more of ``LoraConfig``.

    Returns:
        The model with the adapter merged in by PEFT.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about hubs that are not asked, and layouts of weights
        changed = get_peft_model(
            copy.deepcopy(hf_model), LoraConfig(target_modules=targets, **settings)
        )
        chance = torch.Generator().manual_seed(SEED)
        for name, parameter in changed.named_parameters():
            if ".lora_" in name:
                parameter.data = torch.randn(parameter.shape, generator=chance) * size
        changed.save_pretrained(str(folder))
        return changed.merge_and_unload()


@torch.no_grad()
def logits_of(hf_model: Any, tokens: list[int]) -> Tensor:
    """The logits of Transformers after each token, [tokens vocab]."""
    return hf_model(torch.tensor([tokens])).logits[0].float()
