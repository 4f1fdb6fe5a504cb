"""Models that take the fast paths, and refusals."""

import copy

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from draftwood.loading.models import load_model, model_for
from draftwood.models import families as read
from draftwood.models.native import has_int8
from draftwood.testing import tiny_llama
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from families import FAMILIES, NATIVE, hf_model, random_model


@pytest.mark.model
def test_a_quantised_gguf_runs_in_int8_and_others_in_their_own_type() -> None:
    assert load_model("smollm2-135m").dtype == (
        "int8" if has_int8(torch.device("cpu")) else "bfloat16"
    )
    assert load_model("smollm2-135m", "float32").dtype == "float32"


def test_other_architectures_take_the_general_path() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4)).eval()
    assert isinstance(model_for(gpt2), TransformersModel)
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


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("stablelm", {"qk_layernorm": True}, "a weight for each head"),
        ("cohere", {"use_qk_norm": True}, "a weight for each head"),
        ("gemma3", {"use_bidirectional_attention": True}, "sees what comes after a token"),
        ("gemma", {"use_bidirectional_attention": True}, "sees what comes after a token"),
        ("llama", {"is_causal": False}, "sees what comes after a token"),
        ("gemma3", {"is_causal": False}, "sees what comes after a token"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "one of its bounds is 0.0"),
        ("cohere", {"layer_norm_eps": None}, "the epsilon of its norms is None"),
        ("granite", {"logits_scaling": 0.0}, "one of its factors is 0 or no number"),
    ],
)
def test_variants_of_a_family_that_are_of_another_shape_are_refused(
    family: str, change: dict[str, object], reason: str
) -> None:
    name, options = FAMILIES[family]
    config = getattr(transformers, name)(**{**options, **change})
    with pytest.raises(ValueError, match=reason):
        LeanModel(AutoModelForCausalLM.from_config(config).eval())


def test_gpt_oss_ignores_what_its_configuration_says_of_an_activation() -> None:
    name, options = FAMILIES["gpt-oss"]
    model = random_model(name, {**options, "hidden_act": "gelu_pytorch_tanh"})
    assert LeanModel(model).decoder.sizes.activation == "silu"


def test_every_family_has_a_tiny_model_that_the_tests_run() -> None:
    assert {type(hf_model(family)).__name__ for family in NATIVE} == set(read.FAMILIES)
