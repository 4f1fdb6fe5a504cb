"""A decoder read from a configuration and arrays is the one read from Transformers, bit by bit."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from draftwood.arrays import as_floats
from draftwood.models.cached import context_length
from draftwood.models.configuration import (
    ModelConfiguration,
    UnknownConfigurationError,
    classes,
    end_tokens_of,
    why_not_native,
)
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.native import NativeModel
from draftwood.models.rotary import RUN, power, rotary_of
from draftwood.models.shapes import tensor_shapes
from draftwood.native.matrix import Blocks
from draftwood_torch.loading.skeleton import skeleton
from draftwood_torch.models.reading import read_decoder
from draftwood_torch.models.state import ModelArrays
from families import (
    FAMILIES,
    GROUPED,
    NATIVE,
    STATEFUL,
    UNLIKE,
    WITH_IMAGES,
    hf_model,
    random_model,
    some_tokens,
)

VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"


def told(model: Any) -> dict[str, Any]:
    """Content of its config.json."""
    return json.loads(model.config.to_json_string(use_diff=True))


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Places where two decoders are not the same, to the bit."""
    if is_dataclass(ours) and not isinstance(ours, Blocks):
        if type(ours) is not type(theirs):
            yield at
            return
        for each in fields(ours):
            one, other = (getattr(part, each.name) for part in (ours, theirs))
            yield from differences(one, other, f"{at}.{each.name}")
    elif isinstance(ours, tuple) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{at}.{number}")
    elif isinstance(ours, np.ndarray) and theirs is not None:
        one, other = as_floats(ours), as_floats(theirs)
        same = one.shape == other.shape and one.tobytes() == other.tobytes()
        yield from () if same else (at,)
    elif ours != theirs:
        yield at


def described(model: Any) -> Decoder:
    return describe(told(model), ModelArrays(model))


@pytest.mark.parametrize("family", NATIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_part_is_that_of_transformers(family: str, dtype: torch.dtype) -> None:
    model: Any = random_model(*(FAMILIES | STATEFUL | UNLIKE)[family])
    for parameter in model.parameters():  # tables of frequencies are float32 in every type
        parameter.data = parameter.data.to(dtype)
    assert list(differences(described(model), read_decoder(model))) == []


@pytest.mark.parametrize("family", NATIVE)
def test_logits_are_the_same_to_the_bit(family: str) -> None:
    model = hf_model(family)
    config = ModelConfiguration(told(model))
    ours = NativeModel(DescribedModel(described(model), config, frozenset(), "float32", Cpu()))
    text = some_tokens(20, seed=3)
    found, wanted = (each.start().extend(text).rows for each in (ours, NativeModel(model)))
    assert found.tobytes() == wanted.tobytes()
    assert ours.context_length == NativeModel(model).context_length
    assert ours.vocab_size == NativeModel(model).vocab_size


CHANGED = {
    "rms_norm_eps": ("llama", 1e-3),
    "hidden_act": ("llama", "gelu_pytorch_tanh"),
    "sliding_window": ("mistral-window", None),
    "layer_types": ("cohere2", ["full_attention"] * 4),
    "final_logit_softcapping": ("gemma2", None),
    "attention_multiplier": ("granite", 1.0),
    "num_experts_per_tok": ("olmoe", 1),
    "norm_topk_prob": ("qwen3-experts", True),
    "no_rope_layers": ("smollm3", [1, 1, 1, 1]),
    "use_parallel_residual": ("stablelm-parallel", False),
    "swiglu_limit": ("gpt-oss", 7.0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_planted_difference_is_found(name: str) -> None:
    family, value = CHANGED[name]
    model: Any = hf_model(family)
    state = ModelArrays(model)

    def tensor(name: str) -> Any:
        found = state(name)
        return np.zeros(32, np.float32) if found is None else found

    ours = describe(told(model) | {name: value}, tensor)
    assert list(differences(ours, read_decoder(model)))


FOREIGN: dict[str, dict[str, Any]] = {
    "mistral-window": {"attention_bias": True},
    "qwen2": {"attention_bias": True, "mlp_bias": True, "num_local_experts": 4},
    "phi3": {"attention_bias": True, "layer_types": ["sliding_attention"] * 4},
    "mixtral": {"mlp_only_layers": [1], "decoder_sparse_step": 2, "moe_intermediate_size": 24},
    "olmoe": {"moe_intermediate_size": 24},
    "stablelm": {"attention_bias": True},
    "gpt-oss": {"hidden_act": "gelu_pytorch_tanh"},
}


@pytest.mark.parametrize("family", FOREIGN)
def test_keys_that_a_class_does_not_read_say_nothing(family: str) -> None:
    model: Any = hf_model(family)
    ours = describe(told(model) | FOREIGN[family], ModelArrays(model))
    assert list(differences(ours, read_decoder(model))) == []


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_shared_experts_of_no_width_are_none() -> None:
    name, options = FAMILIES["glm4-experts"]
    model: Any = random_model(name, {**options, "n_shared_experts": 0})
    assert list(differences(described(model), read_decoder(model))) == []


def test_a_planted_bit_is_found() -> None:
    model: Any = hf_model("llama")
    ours, theirs = described(model), read_decoder(model)
    frequencies = np.nextafter(ours.rotaries[0].frequencies, np.float32(2))
    planted = replace(ours, rotaries=(replace(ours.rotaries[0], frequencies=frequencies),))
    assert list(differences(planted, theirs)) == [".rotaries.0.frequencies"]


BASE = {"rope_theta": 10000.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-told": {
        "factor": 4.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.8,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn-magnitude": {"factor": 4.0, "attention_factor": 1.3},
    "longrope": {"short_factor": [1.0, 1.1] * 32, "long_factor": [1.0, 3.0] * 32},
    "longrope-told": {
        "short_factor": [1.5] * 64,
        "long_factor": [2.0] * 64,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
    },
}


def configured(**settings: Any) -> dict[str, Any]:
    """A configuration of a Llama model with heads of 128 dimensions."""
    return {"model_type": "llama", **GROUPED, "head_dim": 128, **settings}


def growing(growth: Any) -> dict[str, Any]:
    """Rotary parameters of Ministral 3, whose queries grow so."""
    return {"rope_type": "yarn", "factor": 2.0, "llama_4_scaling_beta": growth}


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_models_with_images_have_skeletons(family: str) -> None:
    made = skeleton(hf_model(family).config)
    assert not any(buffer.is_meta for name, buffer in made.named_buffers() if "inv_freq" in name)


def of_transformers(config: dict[str, Any]) -> tuple[Any, Any]:
    """Transformers' configuration and table of rotary frequencies of a file's content."""
    made = AutoConfig.for_model(**config)
    return made, skeleton(made).get_decoder().rotary_emb


@pytest.mark.skipif(not VECTORS, reason="PyTorch computes powers with other bits on this CPU")
@pytest.mark.parametrize("base", [10000.0, 500000.0, 1000000, 123456.7])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "older"])
def test_each_scaling_of_rotary_positions(scaling: str, base: float, spelling: str) -> None:
    kind = scaling.partition("-")[0]
    key, name = ("rope_scaling", "type") if spelling == "older" else (spelling, "rope_type")
    parameters = {name: kind, **SCALINGS[scaling]}
    config = configured(**{key: parameters, "rope_theta": base})
    theirs, tables = of_transformers(json.loads(json.dumps(config)))
    read = ModelConfiguration(config)
    rotary = rotary_of(read.rope_parameters, read.head_size, read.get("max_position_embeddings"))
    assert rotary.frequencies.tobytes() == tables.original_inv_freq.numpy().tobytes()
    assert rotary.scale == tables.attention_scaling
    assert context_length(read) == context_length(theirs)


def test_powers_have_the_bits_that_pytorch_gives() -> None:
    draw = np.random.default_rng(0)
    for base in (100.0, 10000.0, 150000.0, 1e6, 8e6, *draw.uniform(2, 1e7, 200)):
        for pairs in (5, 16, 32, 40, 64, 128):
            exponents = np.arange(pairs, dtype=np.float32) / np.float32(pairs)
            wanted = (base ** torch.from_numpy(exponents)).numpy()
            found = power(base, exponents)
            whole = pairs // RUN * RUN
            if VECTORS:
                assert found[:whole].tobytes() == wanted[:whole].tobytes()
            np.testing.assert_array_max_ulp(found, wanted, 1)


OLDER = {"type": "linear", "factor": 2.0}
FULL_LAYERS = {"layer_types": ["full_attention"] * 4}


@pytest.mark.parametrize(
    "more",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": OLDER, "rope_parameters": {"full_attention": {}}},
        {"rope_parameters": {"full_attention": OLDER}},
        {"rope_parameters": {"sliding_attention": None}, "rope_local_base_freq": 77.0},
    ],
)
def test_tables_by_kinds_of_layers_are_those_of_transformers(more: dict[str, Any]) -> None:
    config = configured(model_type="gemma3_text", **more)
    theirs = AutoConfig.for_model(**json.loads(json.dumps(config))).rope_parameters
    ours = ModelConfiguration(config).rope_parameters
    for kind, wanted in theirs.items():
        assert {name: ours[kind].get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "scaled as 'spiral'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lack factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 1}}, "twist, unknown to"),
        ({"rope_parameters": {"sliding_attention": BASE}}, "differ by layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_theta": None}, "lack rope_theta"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2', not one of llama"),
        ({"model_type": None}, "model_type is None"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "what comes after"),
        # Transformers scales nothing here: it looks at "type" where there is no "rope_type" yet
        (
            {**FULL_LAYERS, "model_type": "gemma3_text", "rope_scaling": OLDER},
            "have factor, unknown to default",
        ),
        ({"model_type": "gemma", "use_bidirectional_attention": True}, "what comes after"),
        ({"is_causal": False}, "what comes after a token"),
        ({"model_type": "gemma2", "is_causal": False}, "what comes after a token"),
        ({"model_type": "gemma3", "text_config": {"is_causal": False}}, "what comes after a token"),
        ({"model_type": "gemma3", "is_causal": False, "text_config": {}}, "what comes after"),
        ({"hidden_act": "relu"}, "its activation is relu"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "its 4 heads do not share 3 keys evenly"),
        ({"num_key_value_heads": 64}, "its 4 heads do not share 64 keys evenly"),
        ({"quantization_config": {"quant_method": "awq"}}, "has quantization_config"),
        ({"per_layer_config": {"0": {"hidden_act": "gelu"}}}, "has per_layer_config"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 32}, "its layer_types are"),
        ({"model_type": "gpt_oss", "swiglu_limit": 0.0}, "one of its bounds is 0.0"),
        ({"model_type": "gpt_oss", "swiglu_limit": "7"}, "is 0 or no number"),
        ({"model_type": "granite", "logits_scaling": 0}, "is 0 or no number"),
        ({"model_type": "granite", "residual_multiplier": None}, "is 0 or no number"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": -1}, "is 0 or no number"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 0.0}, "one of its bounds is 0.0"),
        ({"model_type": "cohere", "use_qk_norm": True}, "a weight for each head"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clips queries"),
        ({"model_type": "ministral3", "rope_parameters": growing("x")}, "is 0 or no number"),
        ({"model_type": "ministral3", "rope_parameters": growing(float("nan"))}, "no number"),
        ({"model_type": "mistral3", "text_config": {}}, "text_config is not one of ministral3"),
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral"}}, "not one of minis"),
    ],
)
def test_what_is_not_known_is_refused_with_a_reason(settings: dict[str, Any], reason: str) -> None:
    config = configured(**settings)
    assert reason in (why_not_native(config) or "")
    with pytest.raises(UnknownConfigurationError):
        describe(config, lambda name: None)
    assert why_not_native(configured()) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rms_norm_eps": None}, "the epsilon of its norms is None"),
        ({"model_type": "cohere", "layer_norm_eps": "tiny"}, "epsilon of its norms is 'tiny'"),
        ({"rope_theta": -5}, "its rope_theta is -5"),
        ({"rope_theta": float("inf")}, "its rope_theta is inf"),
        ({"rope_scaling": "linear"}, "of a wrong kind: dictionary update"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "of a wrong kind"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "are no finite numbers"),
        ({"partial_rotary_factor": "x"}, "of a wrong kind"),
        ({"hidden_act": []}, "of a wrong kind"),
        ({"model_type": "smollm3", "no_rope_layers": []}, "of a wrong kind"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "of a wrong kind"),
        ({"model_type": "gemma2", "layer_types": 1}, "of a wrong kind"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": None}, "of a wrong kind"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "its decoder_sparse_step is 0"),
        ({"model_type": "qwen3_moe", "moe_intermediate_size": {}}, "moe_intermediate_size is {}"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "x"}, "its mlp_only_layers is 'x'"),
        ({"model_type": "qwen3_moe", "norm_topk_prob": None}, "its norm_topk_prob is None"),
        ({"model_type": "qwen3_moe", "num_experts": 8.5}, "each token goes to 8 of 8.5 experts"),
    ],
)
def test_values_of_a_wrong_kind_are_refused_with_a_reason(
    settings: dict[str, Any], reason: str
) -> None:
    assert reason in (why_not_native(configured(**settings)) or "")


def test_a_null_of_a_key_that_a_class_does_not_read_says_nothing() -> None:
    assert why_not_native(configured(layer_norm_eps=None, norm_topk_prob=None)) is None


def test_a_width_of_heads_in_the_file_is_the_one_of_cohere_2() -> None:
    settings = {**GROUPED, "model_type": "cohere2", "head_dim": 16}
    assert ModelConfiguration(settings).head_size == 16
    assert AutoConfig.for_model(**settings).head_dim == 16
    assert ModelConfiguration({**settings, "head_dim": None}).head_size == 8


def test_tensors_that_are_missing_or_of_other_shapes_are_named() -> None:
    model: Any = hf_model("llama")
    tensor, name = ModelArrays(model), "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(ValueError, match=rf"1 tensors are missing, the first is {name}"):
        describe(told(model), lambda asked: None if asked == name else tensor(asked))
    with pytest.raises(ValueError, match=rf"{name} is 31 x 48, and 32 x 48 by its"):
        describe(told(model), lambda asked: tensor(asked)[1:] if asked == name else tensor(asked))


OF_HEADS = {"head_dim", "global_head_dim", "num_global_key_value_heads", "per_layer_config"}


@pytest.mark.parametrize("model_type", [name for name, each in classes().items() if not each.part])
def test_defaults_are_those_of_the_classes_of_transformers(model_type: str) -> None:
    """A release of Transformers that changes one has to be read anew."""
    theirs: Any = AutoConfig.for_model(model_type)
    theirs.allow_global_per_layer_attribute_access = True
    ours = ModelConfiguration({"model_type": model_type})
    usual = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_size == (getattr(theirs, "head_dim", None) or usual)
    if ours.family.is_unlike:
        each = [theirs.per_layer_config[layer] for layer in range(theirs.num_hidden_layers)]
        assert ours.heads == [(own.num_key_value_heads, own.head_dim) for own in each]
    for name in classes()[model_type].values.keys() - OF_HEADS:
        told = getattr(theirs, name, None)
        if name == "num_key_value_heads" and told is None:  # as many as heads
            told = theirs.num_attention_heads
        assert getattr(ours, name) == (told or None if name == "sliding_window" else told), name
    kinds = getattr(theirs, "layer_types", None)
    assert getattr(ours, "layer_types", None) == kinds
    found = ours.rope_parameters
    if classes()[model_type].local_theta is None:
        assert found == {**theirs.rope_parameters}
    else:
        assert {key: {**each} for key, each in theirs.rope_parameters.items()} == found


STRAY: dict[str, list[tuple[str, Any]]] = {
    "llama": [("rotary_dim", 4), ("moe_layer_interval", 2)],
    "minimax-m2": [("use_expert_bias", False), ("first_k_dense_replace", 1)],
    "ernie-experts": [("use_expert_bias", False), ("n_shared_experts", 3)],
    "glm4-experts": [("rotary_dim", 8), ("moe_layer_interval", 2), ("decoder_sparse_step", 2)],
    "qwen3-experts": [("n_shared_experts", 1), ("first_k_dense_replace", 1)],
    "lfm2-experts": [("first_k_dense_replace", 0)],
    "bamba": [("partial_rotary_factor", 1.0)],
}


@pytest.mark.parametrize(
    ("family", "key", "value"), [(name, *each) for name, pairs in STRAY.items() for each in pairs]
)
def test_keys_of_other_classes_say_nothing(family: str, key: str, value: Any) -> None:
    """As Transformers ignores them too."""
    own = told(hf_model(family))
    found, wanted = ModelConfiguration({**own, key: value}), ModelConfiguration(own)
    assert tensor_shapes(found) == tensor_shapes(wanted)
    assert found.rope_parameters == wanted.rope_parameters


def test_end_tokens_are_read_as_transformers_does() -> None:
    assert end_tokens_of({"eos_token_id": 2}, None) == {2}
    assert end_tokens_of({"eos_token_id": 2}, {"eos_token_id": [3, 4]}) == {3, 4}
    assert end_tokens_of({"eos_token_id": 2}, {}) == frozenset()
    assert end_tokens_of({"text_config": {"eos_token_id": 7}}, None) == {7}
    assert end_tokens_of({}, None) == frozenset()
