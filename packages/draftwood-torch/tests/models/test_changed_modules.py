"""Models in memory whose modules somebody changed run by their own code, with all that is in it."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from peft import LNTuningConfig, LoraConfig
from torch import nn
from transformers import PreTrainedModel

from draftwood.loading.models import model_for
from draftwood.models.decoder import Rotary
from draftwood.models.description import decoder_of
from draftwood.testing import tiny_llama
from draftwood_torch.models.reading import ConfigurationInMemory, why_not_lean
from draftwood_torch.models.state import ModelState
from draftwood_torch.models.support import layer_windows
from draftwood_torch.models.transformers import TransformersModel
from families import FAMILIES, random_model

TOKENS = [5, 9, 7]
LORA = partial(LoraConfig, init_lora_weights=False)


class Tripled(nn.Linear):
    """A linear layer that multiplies what it gives."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(rows)


class Packed(nn.Parameter):
    """Weights as a package for quantisation may keep them."""


def adapted(model: PreTrainedModel, settings: Any) -> None:
    """Add an adapter of PEFT, with weights that change much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied weights, and of layers that PEFT does not know
        model.add_adapter(settings)
    for name, weights in model.named_parameters():
        if "default" in name:
            nn.init.normal_(weights, std=0.3)


def of_another_class(model: Any) -> None:
    model.lm_head.__class__ = Tripled


def hooked(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, rows: 2 * rows)


def without_a_norm(model: Any) -> None:
    model.model.layers[0].input_layernorm = nn.Identity()


def with_a_forward_of_its_own(model: Any) -> None:
    norm = model.model.norm
    norm.forward = lambda rows: 2 * type(norm).forward(norm, rows)


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "head": ("llama", partial(adapted, settings=LORA(target_modules=["lm_head"]))),
    "tied head": ("gemma3", partial(adapted, settings=LORA(target_modules=["lm_head"]))),
    "embedding": ("llama", partial(adapted, settings=LORA(target_modules=["embed_tokens"]))),
    "router": ("qwen3-experts", partial(adapted, settings=LORA(target_parameters=["gate.weight"]))),
    **{
        name: (family, partial(adapted, settings=LNTuningConfig(target_modules=[name])))
        for family, name in (
            ("llama", "input_layernorm"),
            ("llama", "post_attention_layernorm"),
            ("llama", "norm"),
            ("qwen3", "q_norm"),
        )
    },
    "class": ("llama", of_another_class),
    "hook": ("llama", hooked),
    "no norm": ("llama", without_a_norm),
    "forward": ("llama", with_a_forward_of_its_own),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_modules_are_run_as_they_are(change: str) -> None:
    family, make = CHANGES[change]
    hf_model = random_model(*FAMILIES[family])
    before = own_logits(hf_model)
    make(hf_model)
    hf_model.eval()
    model, wanted = model_for(hf_model), own_logits(hf_model)
    assert isinstance(model, TransformersModel)
    assert (wanted - before).norm() > 0.01 * before.norm()
    found = model.start().extend(TOKENS).logits
    torch.testing.assert_close(found[-1], wanted[-1], rtol=1e-3, atol=1e-3)


def test_weights_of_another_type_are_not_read() -> None:
    """Quantised weights may be tensors of a class of their own in an ordinary linear layer."""
    model: Any = tiny_llama(0)
    assert why_not_lean(model) is None
    linear = model.model.layers[0].mlp.up_proj
    linear.weight = Packed(linear.weight.detach())
    assert why_not_lean(model) == "its weights are quantised or spread over devices"


@torch.no_grad()
def test_transformers_own_hooks_change_nothing() -> None:
    model = tiny_llama(0)
    model(input_ids=torch.tensor([TOKENS]), output_hidden_states=True)
    assert any(module._forward_hooks for module in model.modules())
    assert why_not_lean(model) is None


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight"]
)
def test_what_is_absent_is_not_left_out(name: str) -> None:
    """A head is tied where the configuration says so."""
    model: Any = tiny_llama(0)
    config, state = ConfigurationInMemory(model), ModelState(model)
    config.windows = layer_windows(model)
    shapes = {each: shape for each, shape in state.shapes.items() if each != name}
    rotary = Rotary(frequencies=model.model.rotary_emb.inv_freq, scale=1.0)
    with pytest.raises(ValueError, match=f"1 tensors are missing, the first is {name}"):
        decoder_of(config, state, shapes, (rotary,), torch.Tensor.float)
    whole = decoder_of(config, state, state.shapes, (rotary,), torch.Tensor.float)
    assert whole.lm_head.weight is not whole.embedding


@torch.no_grad()
def own_logits(hf_model: PreTrainedModel) -> torch.Tensor:
    """Logits [tokens vocab] of the model's own pass."""
    return hf_model(input_ids=torch.tensor([TOKENS])).logits[0]
