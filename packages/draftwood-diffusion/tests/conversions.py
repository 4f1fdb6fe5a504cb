"""A tiny next-token model that conversions begin with."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

WORDS = ["a", "b", "c", "d", "e", "ab", "cd", "abcd", "ea"]
MERGES = ["a b", "c d", "ab cd", "e a"]


def tokenizer_told() -> dict[str, object]:
    """Content of a tokenizer.json of byte pairs."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{word: 3 + n for n, word in enumerate(WORDS)}}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": n, "content": word, **flags, "special": True} for word, n in list(vocab.items())[:3]
    ]
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                begin,
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }


def write_model(folder: Path) -> LlamaForCausalLM:
    """A random Llama of twelve tokens, in float32."""
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LlamaForCausalLM(config).eval()
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        **json.loads(config.to_json_string()),
        "dtype": "float32",
        "architectures": ["LlamaForCausalLM"],
    }
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 1, "eos_token_id": 2})
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_told()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "TokenizersBackend"}
        )
    )
    tensors = {n: t.contiguous() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model
