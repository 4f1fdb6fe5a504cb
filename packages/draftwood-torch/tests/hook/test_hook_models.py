"""Architectures inside ``generate``: what the hook accepts writes what ``generate`` writes, the
rest is refused.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import draftwood
from draftwood_torch.hook.probe import takes_batches
from draftwood_torch.models.transformers import TransformersModel

TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": 1,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
SEES = {
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": VISION,
    "image_token_id": 55,
}
IMAGES = {
    "vocab_size": 60,
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "pad_token_id": 0,
}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", TEXT),
    "mistral-window": ("MistralForCausalLM", "MistralConfig", {**TEXT, "sliding_window": 4}),
    "gemma3-window": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**TEXT, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**IMAGES, "bos_token_id": 1, "eos_token_id": None}),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": 60,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global"], 2]],
            "max_position_embeddings": 128,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
        },
    ),
    "gpt-neox-japanese": ("GPTNeoXJapaneseForCausalLM", "GPTNeoXJapaneseConfig", TEXT),
    "git": ("GitForCausalLM", "GitConfig", {**TEXT, "vision_config": VISION}),
    "idefics3": ("Idefics3ForConditionalGeneration", "Idefics3Config", SEES),
    "smolvlm": ("SmolVLMForConditionalGeneration", "SmolVLMConfig", SEES),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {**SEES, "text_config": {"model_type": "gemma", **TEXT}, "projection_dim": 32},
    ),
    "paligemma2": (
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {
            **SEES,
            "text_config": {
                "model_type": "gemma2",
                **TEXT,
                "sliding_window": 4,
                "query_pre_attn_scalar": 8,
            },
            "projection_dim": 32,
        },
    ),
    "imagegpt": ("ImageGPTForCausalImageModeling", "ImageGPTConfig", IMAGES),
    "higgs-audio": (
        "HiggsAudioV2ForConditionalGeneration",
        "HiggsAudioV2Config",
        {**TEXT, "num_codebooks": 4},
    ),
}
REFUSED = ("paligemma", "paligemma2", "imagegpt")
ALONE = ("git",)
GREEDY = {"do_sample": False, "max_new_tokens": 14}
ROWS = torch.tensor([[0, 0, 4, 3, 4, 3], [5, 9, 5, 9, 5, 9]])
BATCH = {"inputs": ROWS, "attention_mask": (ROWS > 0).long()}
LONE = {"inputs": torch.tensor([[5, 9, 5, 9, 5, 9, 7]])}


def made(name: str) -> PreTrainedModel:
    model, config, options = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    for weights in made.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.25)
    made.generation_config.eos_token_id = None
    return made


@pytest.mark.parametrize("inputs", [LONE, BATCH], ids=["alone", "batch"])
@pytest.mark.parametrize("method", ["recycling", "lookup"])
@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_of_generate_or_the_model_is_refused(
    name: str, method: str, inputs: dict[str, Any]
) -> None:
    model = made(name)
    wanted = model.generate(**inputs, **GREEDY)
    hook = {"custom_generate": draftwood.custom_generate(method)}
    if name in REFUSED:
        with pytest.raises(ValueError, match="call generate without custom_generate"):
            model.generate(**inputs, **GREEDY, **hook)
        return
    undrafted = name == "higgs-audio" or (name in ALONE and inputs is BATCH)
    with (
        pytest.warns(UserWarning, match=r"several rows|DelayPattern")
        if undrafted
        else nullcontext()
    ):
        assert torch.equal(model.generate(**inputs, **GREEDY, **hook), wanted)


def test_encoder_decoders_are_refused() -> None:
    config = transformers.T5Config(
        vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.generation_config.decoder_start_token_id = 0
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        model.generate(**LONE, **GREEDY, custom_generate=draftwood.custom_generate("lookup"))


def test_a_model_that_steps_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the look at a model."""
    model = made("llama")
    assert takes_batches(TransformersModel(model))
    other = made("llama")
    original = other.prepare_inputs_for_generation

    def shifted(input_ids: torch.Tensor, **options: Any) -> dict[str, Any]:
        inputs = original(input_ids, **options)
        return {**inputs, "position_ids": 2 * inputs["position_ids"]}

    monkeypatch.setattr(
        type(other), "prepare_inputs_for_generation", lambda self, *a, **o: shifted(*a, **o)
    )
    with pytest.raises(ValueError, match="gives other logits for a draft tree"):
        takes_batches(TransformersModel(other))


def test_a_model_that_only_pads_otherwise_decodes_batches_without_drafts() -> None:
    model, reports = made("git"), []
    hook = draftwood.custom_generate("recycling", report=reports.append)
    with pytest.warns(UserWarning, match="several rows"):
        model.generate(**BATCH, **GREEDY, custom_generate=hook)
    model.generate(**LONE, **GREEDY, custom_generate=hook)
    assert reports[0].drafted == 0 < reports[1].drafted


def test_token_types_of_a_model_that_reads_them() -> None:
    model, inputs = made("gpt2"), {**LONE, "token_type_ids": torch.tensor([[2, 2, 2, 3, 3, 3, 3]])}
    wanted = model.generate(**inputs, **GREEDY)
    assert not torch.equal(wanted, model.generate(**LONE, **GREEDY))
    with pytest.warns(UserWarning, match="token_type_ids"):
        given = model.generate(
            **inputs, **GREEDY, custom_generate=draftwood.custom_generate("recycling")
        )
    assert torch.equal(given, wanted)


def test_a_sliding_windows_cache_goes_on() -> None:
    model = made("gemma3-window")
    for method in ("recycling", "lookup"):
        texts = []
        for hook in ({}, {"custom_generate": draftwood.custom_generate(method)}):
            cache = transformers.DynamicCache(config=model.config)
            first = model.generate(**LONE, **GREEDY, past_key_values=cache, **hook)
            longer = torch.cat([first, torch.tensor([[8, 3]])], dim=1)
            texts.append(model.generate(longer, **GREEDY, past_key_values=cache, **hook))
            assert cache.get_seq_length() == texts[-1].shape[1] - 1
        assert torch.equal(*texts)


MOSHI = {**TEXT, "num_key_value_heads": 4, "ffn_dim": 64, "sliding_window": 16}


@pytest.mark.parametrize("length", [4, 36])
def test_a_cache_that_slides_where_the_masks_do_not_drafts_within_its_window(length: int) -> None:
    """Moshi's own loop forgets what its masks show; a tree would see zeros in its place."""
    torch.manual_seed(0)
    model = transformers.MoshiForCausalLM(transformers.MoshiConfig(**MOSHI)).eval()
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.3)
    prompt = torch.tensor([[(7 * place + 3) % 59 + 1 for place in range(length)]])
    options = {"do_sample": False, "max_new_tokens": 30 if length > 16 else 12}
    wanted, reports = model.generate(prompt, **options), []
    hook = draftwood.custom_generate("recycling", report=reports.append)
    dropped = pytest.warns(UserWarning, match="its cache drops tokens")
    with dropped if length > 16 else nullcontext():
        assert torch.equal(model.generate(prompt, **options, custom_generate=hook), wanted)
    assert (reports[0].drafted > 0) == (length < 16)
