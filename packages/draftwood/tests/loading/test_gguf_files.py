"""GGUF files hold the model that was written into them, to the last number, or are refused by
name."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from draftwood.loading.gguf_blocks import blocks_folder
from draftwood.loading.gguf_files import gguf_folder
from draftwood.loading.gguf_reader import QuickReader
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import load_model
from draftwood.loading.origin import quantisation, weights_digest
from draftwood.models.families import FAMILIES
from draftwood.models.native import NativeModel
from draftwood.native.library import available
from draftwood.storage import memory
from draftwood.storage.atomic import sha256
from gguf_writing import TOKENS, converted, write_gguf
from thinning import thinned

CONTEXT = 64
SMALL = {
    **{
        "vocab_size": len(TOKENS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
    },
    **{
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
    },
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "initializer_range": 0.3},
}
FREQUENCY = {"rope_type": "default", "rope_theta": 100.0}
PAIRS = 4  # rotary frequencies of a head


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    available()  # else every worker would compile the library into a home of its own
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def build(model_type: str, **more: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, **{**SMALL, "rope_parameters": dict(FREQUENCY), **more}
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("inv_freq", "embed_scale")):
            continue
        if parameter.ndim == 1 or name.endswith(
            "_bias"
        ):  # norms and biases too must come out where they were put in
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def logits(model: PreTrainedModel, count: int = CONTEXT) -> torch.Tensor:
    tokens = torch.randint(3, len(TOKENS), (1, count), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model(tokens).logits


def assert_same_model(path: Path, model: PreTrainedModel, count: int = CONTEXT) -> None:
    loaded = load_pretrained(str(path), dtype="float32", device="cpu").model
    torch.testing.assert_close(logits(loaded, count), logits(model, count), rtol=1e-4, atol=1e-4)


def test_lists_are_read_as_the_gguf_package_reads_them(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", build("llama"), settings={"windows": [8, 0, 8], "more": [True]})
    ours, theirs = QuickReader(tmp_path / "m.gguf"), gguf.GGUFReader(tmp_path / "m.gguf")
    kinds = set()
    for name, field in theirs.fields.items():
        if field.types[-1] != gguf.GGUFValueType.STRING or len(field.types) == 1:
            assert ours.fields[name].contents() == field.contents()
            kinds.add(field.types[-1])
    assert {gguf.GGUFValueType.INT32, gguf.GGUFValueType.BOOL} < kinds
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.data_offset) == (other.name, other.data_offset)


# ---- files that are none


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4" + bytes(90), "is not a GGUF file"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(90), "of version 9, readable are 2 and 3"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(90), "is a big-endian GGUF file"),
        (b"GGUF\3\0\0\0" + np.random.default_rng(0).bytes(900), "cannot be read as a GGUF model"),
    ],
)
def test_garbage_is_no_gguf_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} .*{message}"):
        gguf_folder(path)


# ---- rotary positions

LLAMA3 = {
    **{
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_SETTINGS = {
    **{
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
    },
    "rope.scaling.finetuned": True,
}
SHORT, LONG = [1.0, 1.5, 2.0, 3.0], [1.0, 4.0, 9.0, 20.0]
FACTORS = {"rope_factors_short.weight": np.array(SHORT), "rope_factors_long.weight": np.array(LONG)}
LONGROPE = {
    **{"rope_type": "longrope", "rope_theta": 100.0, "short_factor": SHORT, "long_factor": LONG},
    **{"original_max_position_embeddings": 32, "attention_factor": 1.25, "factor": 2.0},
}


def llama3_factors() -> np.ndarray:
    """``rope_freqs.weight`` as llama.cpp's converter makes it of Llama 3.1's parameters."""
    base, size, context = (
        LLAMA3["rope_theta"],
        LLAMA3["factor"],
        LLAMA3["original_max_position_embeddings"],
    )
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    found = []
    for frequency in 1.0 / base ** (np.arange(0, 2 * PAIRS, 2) / (2 * PAIRS)):
        length = 2 * np.pi / frequency
        if length < context / high:
            found.append(1.0)
        elif length > context / low:
            found.append(size)
        else:
            smooth = (context / length - low) / (high - low)
            found.append(1 / ((1 - smooth) / size + smooth))
    return np.array(found)


def test_factors_of_the_example_are_of_all_three_kinds() -> None:
    factors = llama3_factors()
    assert (factors == 1).any()
    assert (factors == 8).any()
    assert ((factors > 1) & (factors < 8)).any()


ROTARY = {
    "llama3": (LLAMA3, {}, {"rope_freqs.weight": llama3_factors()}),
    "linear": (
        {**FREQUENCY, "rope_type": "linear", "factor": 2.5},
        {"rope.scaling.factor": 2.5},
        {},
    ),
    "linear, named": (
        {**FREQUENCY, "rope_type": "linear", "factor": 2.5},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
        {},
    ),
    "linear, old name": (
        {**FREQUENCY, "rope_type": "linear", "factor": 2.5},
        {"rope.scale_linear": 2.5},
        {},
    ),
    "none": (FREQUENCY, {"rope.scaling.type": "none", "rope.scaling.factor": 2.5}, {}),
    "yarn": (YARN, YARN_SETTINGS, {}),
    "yarn with all keys": (
        {**YARN, "attention_factor": 1.3, "beta_fast": 20.0, "beta_slow": 2.0},
        YARN_SETTINGS
        | {"rope.scaling.yarn_attn_factor": 1.3, "rope.scaling.yarn_ext_factor": 1.0}
        | {"rope.scaling.yarn_beta_fast": 20.0, "rope.scaling.yarn_beta_slow": 2.0},
        {},
    ),
    "yarn, magnitude multiplied": (
        {**YARN, "attention_factor": 1.5 * (0.1 * np.log(4.0) + 1.0)},
        YARN_SETTINGS | {"rope.scaling.attn_factor": 1.5},
        {},
    ),
}


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", ROTARY)
def test_scaled_rotary_positions_are_those_of_the_model(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    rope, settings, tensors = ROTARY[kind]
    model = build(architecture, rope_parameters=dict(rope))
    (path,) = write_gguf(tmp_path / "scaled.gguf", model, architecture, settings, tensors)
    assert_same_model(path, model)
    plain = build(architecture)
    if kind != "none":  # the negative control: without the scaling it is another model
        assert (logits(plain) - logits(model)).abs().max() > 0.05


@pytest.mark.parametrize("count", [32, CONTEXT])  # short factors, then long ones
@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_longrope_is_read_from_its_two_tensors(
    tmp_path: Path, architecture: str, count: int
) -> None:
    more = {"original_max_position_embeddings": 32} if architecture == "phi3" else {}
    model = build(architecture, rope_parameters=dict(LONGROPE), **more)
    settings = {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.25}
    (path,) = write_gguf(tmp_path / "long.gguf", model, architecture, settings, FACTORS)
    assert_same_model(path, model, count)


@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear"])
def test_scaled_positions_are_right_on_our_own_path_too(tmp_path: Path, kind: str) -> None:
    rope, settings, tensors = ROTARY[kind]
    model = build("llama", rope_parameters=dict(rope))
    (path,) = write_gguf(tmp_path / "scaled.gguf", model, "llama", settings, tensors)
    session = load_model(str(path), "float32", "cpu").model.start()
    tokens = torch.randint(3, len(TOKENS), (40,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
    torch.testing.assert_close(
        session.extend(tokens.tolist()).logits, expected, rtol=1e-4, atol=1e-4
    )


# ---- architectures

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERT_SETTINGS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}
WIDE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
BY_SIGMOIDS = {**EXPERT_SETTINGS, "expert_feed_forward_length": 32, "expert_gating_func": 2}
"""Experts that are weighed each by itself, a block of 32 numbers wide."""
NEAR = {"rope_type": "default", "rope_theta": 10000.0}
BOTH = {
    "full_attention": {**FREQUENCY, "rope_type": "linear", "factor": 8.0},
    "sliding_attention": NEAR,
}
DELTA_RULE = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "initializer_range": 0.1},
    "rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.25},
}
STATES = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2},
    **{"ssm.time_step_rank": 6, "ssm.inner_size": 96, "full_attention_interval": 4},
}
WINDOW, WHOLE = "sliding_attention", "full_attention"
GEMMA4: dict[str, Any] = {
    **{"tie_word_embeddings": True, "sliding_window": 8, "final_logit_softcapping": 3.0},
    **{"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 0},
    "rope_parameters": {
        WHOLE: {**FREQUENCY, "rope_type": "proportional", "partial_rotary_factor": 0.25},
        WINDOW: NEAR,
    },
}
GEMMA4_SETTINGS: dict[str, Any] = {
    **{"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16},
    **{"attention.key_length_swa": 8, "attention.value_length_swa": 8},
    **{"rope.dimension_count_swa": 8, "rope.freq_base_swa": 10000.0},
    **{"attention.sliding_window": 8, "final_logit_softcapping": 3.0},
}
KEYS_ARE_VALUES = (
    GEMMA4
    | {
        **{"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        "layer_types": [WINDOW, WINDOW, WHOLE],
    },
    GEMMA4_SETTINGS
    | {
        **{"embedding_length_per_layer_input": 0, "attention.shared_kv_layers": 0},
        "attention.head_count_kv": [2, 2, 1],
        "attention.sliding_window_pattern": [True, True, False],
    },
)
"""Gemma 4 without per-layer embeddings: its configuration, and the settings of its file."""
MULTIPLIED = {
    **{"attention_multiplier": 0.25, "embedding_multiplier": 12.0},
    **{"residual_multiplier": 0.5, "logits_scaling": 8.0},
}
SCALES = {
    **{"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.5},
    "logit_scale": 8.0,
}
OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
OF_FOUR_SETTINGS = {"expert_count": 4, "expert_used_count": 2}
MAMBA: dict[str, Any] = {
    **{**MULTIPLIED, "num_hidden_layers": 4, "initializer_range": 0.2},
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    **{"mamba_n_heads": 4, "mamba_d_state": 16, "mamba_expand": 2, "mamba_d_conv": 4},
}
SPACES: dict[str, Any] = {
    **{**SCALES, "attention.head_count_kv": [0, 0, 2, 0], "rope.scaling.finetuned": False},
    **{"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1},
    **{"ssm.time_step_rank": 4, "ssm.inner_size": 64},
}
"""Granite 4 H: its configuration, and the settings of its file."""
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama, wide heads": ("llama", {"head_dim": 16}, {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "mistral3": (
        "ministral3",
        {
            "head_dim": 16,
            "rope_parameters": {
                **{**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.5}
            },
        },
        {
            **{**YARN_SETTINGS, "rope.scaling.yarn_log_multiplier": 0.5},
            "attention.temperature_scale": 0.5,
        },
    ),
    "seed_oss": ("seed_oss", {"head_dim": 16}, {}),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}, {}),
    "ernie4_5, biases": ("ernie4_5", {"use_bias": True, "head_dim": 16}, {}),
    "command-r": (
        "cohere",
        {"logit_scale": 0.25},
        {"logit_scale": 0.25, "rope.scaling.type": "none"},
    ),
    "glm4": ("glm4", {"head_dim": 16}, {}),
    "internlm2": ("llama", {}, {}),
    "exaone4": (
        "exaone4",
        {"sliding_window": 8, "num_hidden_layers": 5},
        {"attention.sliding_window": 8},
    ),
    "exaone4, whole": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3},
        {},
    ),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 16}, {}),
    "qwen2vl": ("qwen2", {}, {"rope.dimension_sections": [1, 1, 2, 0]}),
    "qwen3vl": (
        "qwen3",
        {"head_dim": 16},
        {"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 2},
    ),
    "lfm2": (
        "lfm2",
        {
            **{"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
            **{"block_auto_adjust_ff_dim": False, "conv_L_cache": 3},
        },
        {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]},
    ),
    "lfm2moe": (
        "lfm2_moe",
        {
            **{"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, **WIDE},
            **{"conv_L_cache": 3, "num_dense_layers": 1, "num_experts": 4},
        },
        {
            **{**BY_SIGMOIDS, "leading_dense_block_count": 1},
            **{"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]},
        },
    ),
    "qwen35": (
        "qwen3_5_text",
        DELTA_RULE | {"head_dim": 16, "num_hidden_layers": 4},
        {**STATES, "rope.dimension_sections": [1, 1, 0, 0]},
    ),
    "qwen35moe": (
        "qwen3_5_moe_text",
        DELTA_RULE
        | {"head_dim": 16, "num_hidden_layers": 4, "shared_expert_intermediate_size": 24}
        | EXPERTS,
        {
            **{**STATES, **EXPERT_SETTINGS, "expert_shared_feed_forward_length": 24},
            "rope.dimension_sections": [1, 1, 0, 0],
        },
    ),
    "qwen3next": (
        "qwen3_next",
        DELTA_RULE
        | {"head_dim": 16, "num_hidden_layers": 4, "shared_expert_intermediate_size": 32}
        | {**WIDE, "num_experts": 4},
        {
            **{**STATES, **EXPERT_SETTINGS, "expert_feed_forward_length": 32},
            "expert_shared_feed_forward_length": 32,
        },
    ),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {
            **{"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
            "moe_num_shared_experts": 1,
        },
        {
            **{**EXPERT_SETTINGS, "expert_feed_forward_length": 32, "expert_shared_count": 1},
            **{"expert_shared_feed_forward_length": 32, "interleave_moe_layer_step": 1},
            "leading_dense_block_count": 1,
        },
    ),
    "glm4moe": (
        "glm4_moe",
        {
            **{**WIDE, "n_routed_experts": 4, "n_shared_experts": 2, "head_dim": 16},
            **{"attention_bias": True, "use_qk_norm": True, "routed_scaling_factor": 1.5},
            "rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.5},
        },
        {
            **{**BY_SIGMOIDS, "expert_shared_count": 2, "leading_dense_block_count": 1},
            **{"expert_weights_scale": 1.5, "expert_weights_norm": True},
            **{"expert_group_count": 1, "expert_group_used_count": 1},
        },
    ),
    "glm4moe, bare": (
        "glm4_moe",
        {
            **{**WIDE, "n_routed_experts": 4, "n_shared_experts": 1, "norm_topk_prob": False},
            **{"first_k_dense_replace": 0, "rope_parameters": {**FREQUENCY}, "head_dim": 16},
        },
        {**BY_SIGMOIDS, "expert_shared_count": 1, "rope.dimension_count": 8},
    ),
    "minimax-m2": (
        "minimax_m2",
        {
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
            "rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.5},
        },
        {**BY_SIGMOIDS, "expert_feed_forward_length": 64},
    ),
    "qwen2moe": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 24, "num_hidden_layers": 2},
        {**EXPERT_SETTINGS, "expert_shared_feed_forward_length": 24},
    ),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}, EXPERT_SETTINGS),
    "llama, experts": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "olmoe": (
        "olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2},
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": {**YARN, "truncate": False},
        },
        {
            **YARN_SETTINGS,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 64,
            "attention.sliding_window": 8,
        },
    ),
    "gemma2": (
        "gemma2",
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
        {
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2, 46 layers": (
        "gemma2",
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "num_hidden_layers": 46, "head_dim": 16},
        {"attention.sliding_window": 8},
    ),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "num_hidden_layers": 7,
            "rope_parameters": BOTH,
        },
        {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "phi3": ("phi3", {"sliding_window": 8}, {"attention.sliding_window": 8}),
    "phi3, part of a head": (
        "phi3",
        {"rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.5}},
        {},
    ),
    "stablelm": ("stablelm", {"rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.25}}, {}),
    "stablelm, side by side": (
        "stablelm",
        {
            "use_parallel_residual": True,
            "use_qkv_bias": True,
            "rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.5},
        },
        {"use_parallel_residual": True},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}, {}),
    "olmo2": ("olmo2", {}, {}),
    "olmo2, windows": (
        "olmo3",
        {
            **{"sliding_window": 8, "num_hidden_layers": 5},
            "rope_parameters": {WHOLE: dict(YARN), WINDOW: FREQUENCY},
        },
        {**YARN_SETTINGS, "attention.sliding_window": 8},
    ),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.25,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 8.0,
        },
        {
            "attention.scale": 0.25,
            "embedding_scale": 12.0,
            "residual_scale": 0.5,
            "logit_scale": 8.0,
        },
    ),
    "granite, silent": ("granite", {"attention_multiplier": 8**-0.5}, {}),
    "granite, of hybrids": (  # all layers of such a one have attention
        "granite",
        MULTIPLIED,
        {
            **{**SPACES, "rope.scaling.finetuned": True, "attention.head_count_kv": [2] * 3},
            **{"expert_count": 0, "expert_shared_feed_forward_length": 64},
        },
    ),
    "granitemoe": ("granitemoe", MULTIPLIED | OF_FOUR, SCALES | OF_FOUR_SETTINGS),
    "granitemoe, shared": (
        "granitemoeshared",
        MULTIPLIED | OF_FOUR | {"shared_intermediate_size": 32},
        SCALES | OF_FOUR_SETTINGS | {"expert_shared_feed_forward_length": 32},
    ),
    "granitehybrid": (
        "granitemoehybrid",
        MAMBA | OF_FOUR | {"shared_intermediate_size": 32},
        SPACES | OF_FOUR_SETTINGS | {"expert_shared_feed_forward_length": 32},
    ),
    "granitehybrid, without experts": (
        "granitemoehybrid",
        MAMBA
        | {
            **{"num_local_experts": 0, "shared_intermediate_size": 64, "mamba_n_groups": 2},
            **{"position_embedding_type": "rope", "tie_word_embeddings": True},
        },
        SPACES
        | {
            **{"ssm.group_count": 2, "expert_shared_feed_forward_length": 64},
            "rope.scaling.finetuned": True,
        },
    ),
    "cohere2": (
        "cohere2",
        {"sliding_window": 8, "logit_scale": 0.25, "num_hidden_layers": 5},
        {"attention.sliding_window": 8, "logit_scale": 0.25, "rope.scaling.type": "none"},
    ),
    "gemma": ("gemma", {}, {}),
    "gemma4": (
        "gemma4_text",
        GEMMA4
        | {
            **{"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": len(TOKENS)},
            **{"num_hidden_layers": 6, "layer_types": [WINDOW, WHOLE] * 3},
            **{"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        },
        GEMMA4_SETTINGS
        | {
            **{"embedding_length_per_layer_input": 32, "attention.shared_kv_layers": 2},
            "attention.sliding_window_pattern": [True, False] * 3,
            "feed_forward_length": [64] * 4 + [128] * 2,
        },
    ),
    "gemma4, keys are values": ("gemma4_text", *KEYS_ARE_VALUES),
    "gemma4, experts": (
        "gemma4_text",
        KEYS_ARE_VALUES[0]
        | {
            **{"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2},
            "moe_intermediate_size": 32,
        },
        KEYS_ARE_VALUES[1] | {**EXPERT_SETTINGS, "expert_feed_forward_length": 32},
    ),
    "starcoder2": ("starcoder2", {}, {}),
    "nemotron": ("nemotron", {"rope_parameters": {**FREQUENCY, "partial_rotary_factor": 0.5}}, {}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}, {}),
}


@pytest.mark.parametrize("kind", thinned(ARCHITECTURES, 8))
def test_every_architecture_is_the_model_that_was_written(tmp_path: Path, kind: str) -> None:
    model_type, more, settings = ARCHITECTURES[kind]
    model = build(model_type, **more)
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, kind.split(",")[0], settings)
    assert_same_model(path, model)
    if type(model).__name__ in FAMILIES:
        assert_same_in_cpp(path, model)


def test_layers_that_foretell_tokens_are_left_out(tmp_path: Path) -> None:
    model_type, more, settings = ARCHITECTURES["qwen35"]
    model = build(model_type, **more)
    settings = {**settings, "block_count": 5, "nextn_predict_layers": 1}
    settings |= {"attention.recurrent_layers": [True, True, True, False, False]}
    further = {
        f"blk.4.{name}.weight": np.ones((32, 32), np.float32)
        for name in ("attn_q", "attn_norm", "nextn.eh_proj", "nextn.enorm")
    }
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, "qwen35", settings, further)
    assert_same_model(path, model)


@pytest.mark.parametrize("kind", ["gemma3", "granite", "llama, experts", "gpt-oss"])
def test_files_of_families_run_in_cpp(tmp_path: Path, kind: str) -> None:
    model_type, more, settings = ARCHITECTURES[kind]
    model, architecture = build(model_type, **more), kind.split(",")[0]
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, architecture, settings)
    assert_same_in_cpp(path, model)


def assert_same_in_cpp(path: Path, model: PreTrainedModel) -> None:
    ours = load_model(str(path), "float32", "cpu").model
    assert isinstance(ours, NativeModel)
    tokens = torch.randint(3, len(TOKENS), (40,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
    found = ours.start().extend(tokens.tolist()).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(("pre", "digits"), [("refact", ["1", "2"]), ("default", ["12"])])
def test_digits_stand_alone_where_the_file_says_so(
    tmp_path: Path, pre: str, digits: list[str]
) -> None:
    model = build("granite", vocab_size=len(TOKENS) + 1)
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, "granite", pre=pre, merges=["1 2"])
    tokenizer = load_pretrained(str(path), device="cpu").tokenizer
    assert tokenizer.tokenize("a12") == ["a", *digits]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention.scale": 0.5}, r"llama\.attention\.scale = 0\.5 is not understood"),
        ({"logit_scale": 0.25}, r"llama\.logit_scale = 0\.25 is not understood"),
        ({"residual_scale": 0.22}, r"llama\.residual_scale"),
        ({"embedding_scale": 12.0}, r"llama\.embedding_scale"),
        ({"final_logit_softcapping": 30.0}, r"llama\.final_logit_softcapping"),
        ({"attention.sliding_window": 8}, r"llama\.attention\.sliding_window = 8"),
        ({"expert_count": 8, "expert_used_count": 2}, r"ffn_gate\.weight has no place in Mixtral"),
        ({"expert_count": 8}, r"llama\.expert_used_count is missing"),
        ({"something.new": [1, 2]}, r"llama\.something\.new"),
        ({"rope.dimension_count": 4}, "it rotates 4 of 8 dimensions per head"),
        ({"attention.value_length": 16}, "its values have 16 dimensions per head"),
        (
            {"attention.head_count": [4, 4, 2]},
            r"llama\.attention\.head_count differs between layers",
        ),
        ({"rope.scaling.type": "longrope"}, "its rope.scaling.type is 'longrope'"),
        ({"rope.scaling.attn_factor": 1.5}, r"attn_factor is 1\.5 without a scaling"),
        ({"rope.scaling.alpha": 1000.0}, r"llama\.rope\.scaling\.alpha"),
        (YARN_SETTINGS | {"rope.scaling.yarn_log_multiplier": 0.1}, r"yarn_log_multiplier 0\.1"),
        (YARN_SETTINGS | {"rope.scaling.yarn_ext_factor": 0.5}, r"yarn_ext_factor 0\.5"),
    ],
)
def test_settings_that_change_the_numbers_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str, own_home: Path
) -> None:
    (path,) = write_gguf(tmp_path / "strange.gguf", build("llama"), "llama", settings)
    told = rf"{path} cannot be read as a GGUF model \(.*{message}.*\); (.*)"
    with pytest.raises(ValueError, match=told) as caught:
        load_pretrained(str(path))
    assert not list(own_home.glob("models/gguf-*"))
    found = re.fullmatch(told, str(caught.value))
    assert found is not None
    again = "fetch the file again, or " if "missing" in message else ""  # else it would not help
    assert found[1] == f"{again}name the original model by its Hugging Face id"


def of_kind(path: Path, kind: str | None, weights: int = 1) -> Path:
    """A file that says what it is, with so many tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    if kind is not None:
        writer.add_type(kind)
    for number in range(weights):
        writer.add_tensor(f"x.{number}", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "weights", "told"),
    [
        ("adapter", 1, r"no model but an adapter\); .* --adapter a folder that save_pretrained"),
        ("mmproj", 1, r"that reads pictures\); name the file of its language model"),
        ("imatrix", 1, r"of the type 'imatrix'\); name the original model by its Hugging Face id"),
        ("model", 0, r"a tokenizer and no weights\); name the whole file"),
        (None, 0, r"a tokenizer and no weights\); name the whole file"),
    ],
)
def test_sound_files_that_hold_no_model_are_told_by_what_they_hold(
    tmp_path: Path, kind: str | None, weights: int, told: str
) -> None:
    path = of_kind(tmp_path / "other.gguf", kind, weights)
    for dtype in (None, "bfloat16"):
        with pytest.raises(ValueError, match=f"it holds .*{told}") as caught:
            load_model(str(path), dtype, "cpu")
        assert "fetch" not in str(caught.value)


def test_gemma_2_has_a_window_that_early_files_do_not_tell(tmp_path: Path) -> None:
    model = build("gemma2", sliding_window=4096, query_pre_attn_scalar=8)
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, "gemma2")
    assert_same_model(path, model)


def test_a_token_that_is_no_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_writing.TOKENS", [*TOKENS[:-1], b"\xff\xfe"])
    (path,) = write_gguf(tmp_path / "tiny.gguf", build("llama"))
    with pytest.raises(ValueError, match=r"\(a text at byte \d+ is not UTF-8\)"):
        load_model(str(path), None, "cpu")


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_more_tokens_than_rows_are_refused_where_texts_have_them(
    tmp_path: Path, dtype: str | None
) -> None:
    (path,) = write_gguf(tmp_path / "tiny.gguf", build("llama"), merges=["a b"])
    rows = len(TOKENS)
    told = (
        rf"\(its tokenizer has {rows + 1} tokens and its embedding {rows} rows, .*\); name the ori"
    )
    with pytest.raises(ValueError, match=told):
        load_model(str(path), dtype, "cpu")


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_tokens_without_a_row_that_no_text_has_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None
) -> None:
    """llama.cpp's converter leaves them out too."""
    end, types = len(TOKENS), gguf.GGUFWriter.add_token_types

    def with_control(writer: gguf.GGUFWriter, given: list[int]) -> None:
        types(writer, [*given[:-1], 3])

    monkeypatch.setattr(gguf.GGUFWriter, "add_token_types", with_control)
    model, more = build("llama"), {"eot_token_id": end, "padding_token_id": end}
    monkeypatch.setattr("gguf_writing.TOKENS", [*TOKENS, "<pad>"])
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, tokenizer=more)
    found = load_model(str(path), dtype, "cpu")
    assert len(found.tokenizer) == end
    assert max(found.tokenizer("a<pad>")["input_ids"]) < end
    assert found.model.end_tokens == frozenset({1})


def test_granite_without_positions_is_refused(tmp_path: Path) -> None:
    settings = {"attention.scale": 0.25, "rope.scaling.finetuned": False}
    (path,) = write_gguf(tmp_path / "tiny.gguf", build("granite"), "granite", settings)
    with pytest.raises(ValueError, match="its queries and keys have no positions"):
        load_pretrained(str(path))


def test_a_list_of_equal_numbers_for_layers_is_one_number(tmp_path: Path) -> None:
    model = build("llama")
    heads, shared = model.config.num_attention_heads, model.config.num_key_value_heads
    layers = model.config.num_hidden_layers
    lists = {"head_count": [heads] * layers, "head_count_kv": [shared] * layers}
    settings = {f"attention.{key}": each for key, each in lists.items()}
    (path,) = write_gguf(tmp_path / "tiny.gguf", model, "llama", settings)
    assert_same_model(path, model)


def test_settings_that_change_nothing_are_no_reason(tmp_path: Path) -> None:
    model = build("llama")
    neutral = {
        "expert_count": 0,
        "expert_used_count": 0,
        "logit_scale": 1.0,
        "attention.causal": True,
        "attention.group_norm_epsilon": 0.0,
        "attention.shared_kv_layers": 0,
        "attention.temperature_scale": 0.0,
        "leading_dense_block_count": 0,
    }
    (path,) = write_gguf(
        tmp_path / "neutral.gguf", model, "llama", neutral | {"tensor_data_layout": "Meta AI"}
    )
    assert_same_model(path, model)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"blk.0.attn_q_norm.weight": np.ones(8)},
            r"its tensor blk\.0\.attn_q_norm\.weight has no place in Llama",
        ),
        ({"rope_factors_long.weight": np.ones(4)}, "it has only rope_factors_long"),
        ({"rope_freqs.weight": np.ones(3)}, "it has 3 factors for 4 rotary frequencies"),
    ],
)
def test_tensors_that_no_weight_takes_are_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    (path,) = write_gguf(tmp_path / "strange.gguf", build("llama"), "llama", {}, tensors)
    with pytest.raises(ValueError, match=message):
        load_pretrained(str(path))


def test_an_architecture_that_is_not_known_whole_is_refused(tmp_path: Path) -> None:
    (path,) = write_gguf(tmp_path / "strange.gguf", build("llama"), "deci")
    told = r"its architecture is deci; readable are llama, .*qwen2.*\); name the original model by"
    with pytest.raises(ValueError, match=told):  # the same file again would not help
        load_pretrained(str(path))


@pytest.mark.parametrize("load", [load_pretrained, load_model])
@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "plamo2"])
def test_a_kind_of_tokenizer_that_is_not_known_is_refused(
    tmp_path: Path, kind: str, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = gguf.GGUFWriter.add_tokenizer_model
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_model", lambda writer, _: add(writer, kind))
    (path,) = write_gguf(tmp_path / "m.gguf", build("llama"))
    told = rf"its tokenizer is of the kind '{kind}'; readable are gpt2.*\); name the original"
    with pytest.raises(ValueError, match=told):
        load(str(path), device="cpu")


# ---- numbers


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_in_float32_a_file_has_its_own_numbers_to_the_last_bit(tmp_path: Path, kind: str) -> None:
    model = build("qwen2")  # whose matrices are stored as they are
    (path,) = write_gguf(
        tmp_path / "model.gguf", model, "qwen2", kind=gguf.GGMLQuantizationType[kind]
    )
    loaded = load_pretrained(str(path), dtype="float32", device="cpu").model.state_dict()
    told = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
    for name, each in {
        "blk.1.attn_q.weight": "model.layers.1.self_attn.q_proj.weight",
        "blk.2.ffn_down.weight": "model.layers.2.mlp.down_proj.weight",
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    }.items():
        assert torch.equal(loaded[each], torch.from_numpy(told[name].copy())), name
    rounded = load_pretrained(str(path), device="cpu").model.state_dict()
    assert all(torch.equal(rounded[name], weight.bfloat16()) for name, weight in loaded.items())


@pytest.mark.parametrize(
    ("kind", "told"), [("Q4_1", "Q4_1"), ("Q8_0", "Q8_0"), ("BF16", None), (None, None)]
)
def test_quantisation_is_read_from_the_tensors_and_not_from_the_name(
    tmp_path: Path, kind: str | None, told: str | None
) -> None:
    chosen = None if kind is None else gguf.GGMLQuantizationType[kind]
    paths = write_gguf(tmp_path / "model.gguf", build("llama"), kind=chosen)
    folder = load_pretrained(str(paths[0]), device="cpu").path
    assert quantisation(folder) == told
    paths = write_gguf(tmp_path / "Q6_K-is-only-a-name.gguf", build("llama"), kind=chosen)
    assert quantisation(load_pretrained(str(paths[0]), device="cpu").path) == told


def test_folders_of_one_file_have_its_digest(tmp_path: Path) -> None:
    (path,) = write_gguf(
        tmp_path / "model.gguf", build("llama"), kind=gguf.GGMLQuantizationType.Q8_0
    )
    folders = [
        load_pretrained(str(path), dtype=dtype, device="cpu").path
        for dtype in ("bfloat16", "float32")
    ]
    assert folders[0] != folders[1]
    assert {weights_digest(folder) for folder in folders} == {sha256(path)}


def test_a_folder_that_an_earlier_version_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration may be that of another model."""
    (path,) = write_gguf(tmp_path / "model.gguf", build("llama"))
    before = load_pretrained(str(path), device="cpu").path
    monkeypatch.setattr("draftwood.loading.gguf_files.READING", -1)
    assert load_pretrained(str(path), device="cpu").path != before


@pytest.mark.parametrize("make", [blocks_folder, gguf_folder])
def test_a_folder_whose_tokens_were_read_otherwise_is_made_again(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name stays, by which what was packed from it is found."""
    (path,) = write_gguf(tmp_path / "model.gguf", build("llama"))
    with monkeypatch.context() as patch:
        patch.setattr("draftwood.loading.gguf_files.TOKENS", -1)
        settings = make(path) / "generation_config.json"
        settings.write_text("of an earlier version")
        assert make(path) == settings.parent
        assert settings.read_text() == "of an earlier version"
    assert make(path) == settings.parent
    assert settings.read_text() != "of an earlier version"


# ---- split files


def test_a_split_file_is_read_whole_from_any_part(tmp_path: Path) -> None:
    model = build("llama")
    parts = write_gguf(tmp_path / "model.gguf", model, split=12)
    assert [part.name for part in parts] == [
        f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)
    ]
    for part in parts:
        assert_same_model(part, model)


def test_a_split_file_without_all_parts_says_which_is_missing(tmp_path: Path) -> None:
    parts = write_gguf(tmp_path / "model.gguf", build("llama"), split=12)
    parts[1].unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"one of 3 parts of a model, and model-00002-of-00003\.gguf .*--merge",
    ):
        load_pretrained(str(parts[0]))


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    parts = write_gguf(tmp_path / "model.gguf", build("llama"), split=12)
    other = parts[0].rename(tmp_path / "part.gguf")
    with pytest.raises(ValueError, match="it is one of 3 parts and is not named so"):
        load_pretrained(str(other))


def in_cache(parts: list[Path], snapshot: Path) -> list[Path]:
    """Links to files that lie under their digests, as in Hugging Face's cache."""
    snapshot.mkdir(parents=True)
    blobs = snapshot.parent / "blobs"
    blobs.mkdir()
    for part in parts:
        blob = part.rename(blobs / sha256(part))
        (snapshot / part.name).symlink_to(Path("..") / "blobs" / blob.name)
    return [snapshot / part.name for part in parts]


def test_parts_are_found_by_the_names_of_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("llama")
    links = in_cache(write_gguf(tmp_path / "model.gguf", model, split=12), tmp_path / "snapshot")
    for link in links:
        assert_same_model(link, model)
    assert len({gguf_folder(link, "float32") for link in links}) == 1
    monkeypatch.chdir(links[0].parent)
    assert gguf_folder(Path(links[1].name), "float32") == gguf_folder(links[1], "float32")
    alias = tmp_path / "alias.gguf"
    alias.symlink_to(links[0])
    with pytest.raises(ValueError, match="it is one of 3 parts and is not named so"):
        load_pretrained(str(alias))


@pytest.mark.parametrize("name", ["alias.gguf", "other-00002-of-00003.gguf"])
def test_a_link_leads_to_the_part_that_it_names(tmp_path: Path, name: str) -> None:
    model, alias = build("llama"), tmp_path / "elsewhere" / name
    parts = write_gguf(tmp_path / "model.gguf", model, split=12)
    alias.parent.mkdir()
    alias.symlink_to(parts[1])
    assert_same_model(alias, model)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_change_in_any_part_is_seen(tmp_path: Path, changed: int) -> None:
    paths = write_gguf(tmp_path / "model.gguf", build("llama"), split=12)
    links = in_cache(paths, tmp_path / "snapshot")
    before = gguf_folder(links[0])
    assert gguf_folder(links[0]) == before
    os.utime(links[changed], ns=(1, 1))
    assert gguf_folder(links[0]) != before


# ---- files that take the place of others


def test_another_file_of_the_same_size_and_time_is_converted_again(tmp_path: Path) -> None:
    path, other = (
        write_gguf(tmp_path / name, model, "llama")[0]
        for name, model in (("a.gguf", build("llama")), ("b.gguf", thirds(build("llama"))))
    )
    assert_same_model(path, build("llama"))
    at = path.stat().st_mtime_ns
    os.utime(other, ns=(at, at))
    shutil.copy2(other, path)
    assert_same_model(path, thirds(build("llama")))
    assert len([each for each in (tmp_path / "home/models").glob("gguf-*") if each.is_dir()]) == 1


def thirds(model: PreTrainedModel) -> PreTrainedModel:
    for parameter in model.parameters():
        parameter.data /= 3
    return model


def test_where_nothing_can_be_written_a_folder_of_a_moved_file_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_gguf(tmp_path / "model.gguf", build("llama"))
    before, made = gguf_folder(path), list[Path]()
    monkeypatch.setattr(
        "draftwood.loading.gguf_files.convert_gguf", lambda path, new, dtype: made.append(new) or {}
    )
    path.chmod(0o600)  # its size and time stay
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda place, mode: mode != os.W_OK)
        assert gguf_folder(path) == before
        assert not made
        (other,) = write_gguf(tmp_path / "other.gguf", thirds(build("llama")))
        at = path.stat().st_mtime_ns
        path.write_bytes(other.read_bytes())
        os.utime(path, ns=(at, at))
        assert gguf_folder(path) == before
        assert len(made) == 1  # which a disk refuses that takes nothing
    path.chmod(0o644)
    assert gguf_folder(path) == before  # control
    assert len(made) == 2


# ---- memory


def test_what_does_not_fit_into_memory_is_refused_before_it_is_converted(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    (path,) = write_gguf(tmp_path / "model.gguf", build("llama"), kind=kind)
    numbers = sum(int(each.n_elements) for each in gguf.GGUFReader(path).tensors)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available_memory", lambda: 3 * numbers)
        gguf_folder(path, "bfloat16")
        with pytest.raises(MemoryError, match=r"model\.gguf needs .* take a smaller model"):
            gguf_folder(path, "float32")
    assert len([each for each in own_home.glob("models/*") if each.is_dir()]) == 1
    gguf_folder(path, "float32")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (MemoryError("no room"), MemoryError, "^no room$"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "^Default"),
        (RuntimeError("odd"), ValueError, r"cannot be read .*\(odd\); fetch the file again"),
    ],
)
def test_lack_of_memory_is_no_damage_of_a_file(
    tmp_path: Path,
    error: Exception,
    kind: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (path,) = write_gguf(tmp_path / "model.gguf", build("llama"))

    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr("draftwood.loading.gguf_floats.float_tensors", fail)
    with pytest.raises(kind, match=message):
        gguf_folder(path)


def test_every_converted_tensor_is_named() -> None:
    names: Callable[[str], bool] = converted(build("llama"), "llama").__contains__
    assert names("blk.2.ffn_gate.weight")
    assert names("output.weight")
