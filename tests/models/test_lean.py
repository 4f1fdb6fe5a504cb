"""Which models take the fast paths, and what is refused."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, StableLmConfig, StableLmForCausalLM

from draftwood.loading.models import load_model, model_for
from draftwood.models.lean import LeanModel
from draftwood.models.native import has_int8
from draftwood.models.transformers import TransformersModel
from draftwood.testing import tiny_llama


@pytest.mark.model
def test_a_quantised_gguf_runs_in_int8_and_others_in_their_own_type() -> None:
    assert load_model("smollm2-135m").dtype == (
        "int8" if has_int8(torch.device("cpu")) else "bfloat16"
    )
    assert load_model("smollm2-135m", "float32").dtype == "float32"


def test_other_architectures_take_the_general_path() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4)).eval()
    assert isinstance(model_for(gpt2), TransformersModel)
    with pytest.raises(
        ValueError, match="int8 runs Llama-shaped models only, and GPT2LMHeadModel is not one of"
    ):
        model_for(gpt2, int8=True)
    with pytest.raises(ValueError, match="use TransformersModel"):
        LeanModel(gpt2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: setattr(model.config, "hidden_act", "gelu"), "its activation is gelu"),
        (lambda model: model.double(), "its weights are torch.float64"),
        (lambda model: delattr(model.model.rotary_emb, "inv_freq"), "rotary frequencies"),
        (
            lambda model: setattr(model.model.layers[0].mlp, "up_proj", torch.nn.Identity()),
            "quantised or adapted",
        ),
    ],
)
def test_variants_that_it_does_not_know_are_refused(change, reason: str) -> None:
    model = copy.deepcopy(tiny_llama(0))
    change(model)
    with pytest.raises(ValueError, match=reason):
        LeanModel(model)


def test_a_parallel_residual_is_refused() -> None:
    config = StableLmConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_parallel_residual=True,
    )
    with pytest.raises(ValueError, match="side by side"):
        LeanModel(StableLmForCausalLM(config).eval())
