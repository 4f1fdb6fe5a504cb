"""A window in a configuration counts where the class makes masks with it, and nowhere else."""

import inspect
from typing import Any

import pytest
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)

from draftwood.loading.models import model_for
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.embeddings_and_head import final_norm
from draftwood_torch.models.reading import why_not_lean
from draftwood_torch.models.support import layer_windows
from draftwood_torch.models.transformers import TransformersModel
from families import apart, ending_of

WINDOW = 4
MOST_WEIGHTS = 3 * 10**6
SMALL = {  # whatever of these a configuration knows
    **{
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "head_dim": 8,
    },
    **{
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    },
    **{
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 64,
        "rotary_dim": 4,
        "is_decoder": True,
    },
    **{
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    **{
        "ffn_dim": 48,
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 4,
        "max_seq_len": 64,
        "word_embed_proj_dim": 32,
    },
    **{
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "use_sliding_window": True,
        "max_window_layers": 2,
    },
}
IGNORING = (
    "llama",
    "gemma",
    "phi",
    "cohere",
    "olmo",
    "olmo2",
    "granite",
    "glm",
    "glm4",
    "stablelm",
    "gpt_neox",
    "arcee",
)
OBEYING = (
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma2",
    "gemma3_text",
    "cohere2",
    "starcoder2",
    "olmo3",
)
TYPES = sorted(config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING)


def build(model_type: str, window: int | None = WINDOW) -> PreTrainedModel | None:
    """A tiny model whose configuration names a window; None where these few sizes do not suffice to
    make one.
    """
    torch.manual_seed(0)
    kind = next(config for config in MODEL_FOR_CAUSAL_LM_MAPPING if config.model_type == model_type)
    known = set(getattr(kind, "__dataclass_fields__", {})) | set(
        inspect.signature(kind.__init__).parameters
    )
    sizes: dict[str, Any] = {name: value for name, value in SMALL.items() if name in known}
    try:
        config = AutoConfig.for_model(model_type, **sizes, sliding_window=window)
        with torch.device("meta"):
            size = sum(
                each.numel() for each in AutoModelForCausalLM.from_config(config).parameters()
            )
        if size > MOST_WEIGHTS:
            return None
        model = AutoModelForCausalLM.from_config(config).eval()
        return model if bool(logits(model).isfinite().all()) else None
    except Exception:  # every architecture has its own way to say that it wants other sizes
        return None


def tokens() -> torch.Tensor:
    return torch.randint(2, 60, (24,), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(tokens()[None]).logits[0]


def assert_same(model: PreTrainedModel) -> None:
    """On every path that runs the model."""
    expected = logits(model)
    paths = [
        model_for(model),
        TransformersModel(model),
        *([] if why_not_lean(model) else [LeanModel(model)]),
    ]
    for ours in paths:
        found = ours.start().extend(tokens().tolist()).logits
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


def assert_same_ends(model: PreTrainedModel) -> None:
    """Check the ends of every model that claims any. New norms are all alike, so this one is
    changed.
    """
    ours, norm = TransformersModel(model), final_norm(model)
    if norm is None:
        assert "embeddings_and_head" not in ours.abilities
        return
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.rand(parameter.shape) - 0.5
    before, after, expected = ending_of(model, tokens().tolist())
    part = torch.tensor([40, 3, 17])
    assert apart(ours.embeddings_and_head.logits(before), expected) <= 1e-5
    assert apart(ours.embeddings_and_head.logits(after, normed=True), expected) <= 1e-5
    assert apart(ours.embeddings_and_head.logits(before, part), expected[:, part]) <= 1e-5


@pytest.mark.parametrize("model_type", TYPES)
def test_logits_and_ends_are_those_of_the_class(model_type: str) -> None:
    model = build(model_type)
    if model is None:
        pytest.skip("these sizes make no tiny model of it")
    try:
        TransformersModel(model)
    except ValueError as error:
        pytest.skip(str(error))
    assert_same(model)
    assert_same_ends(model)


@pytest.mark.parametrize("model_type", IGNORING)
def test_classes_without_windows_see_everything(model_type: str) -> None:
    model, without = build(model_type), build(model_type, None)
    assert model is not None
    assert without is not None
    assert torch.equal(logits(model), logits(without))  # the class does ignore it
    assert set(layer_windows(model)) == {None}
    assert_same(model)


@pytest.mark.parametrize("model_type", OBEYING)
def test_classes_with_windows_see_no_more(model_type: str) -> None:
    model = build(model_type)
    assert model is not None
    assert WINDOW in layer_windows(model)
    assert_same(model)


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("model_type", ["llama", "phi3", "mixtral", "qwen3_moe", "starcoder2"])
def test_kinds_of_layers_that_the_class_does_not_know_are_passed_over(
    model_type: str, kind: str
) -> None:
    model, window = build(model_type), None if model_type == "llama" else WINDOW
    assert model is not None
    model.config.layer_types = [kind] * 4
    assert layer_windows(model) == [window] * 4
    assert_same(model)
