"""A random Llama for tests."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(
    seed: int = 0,
    layers: int = 2,
    vocab: int = 64,
    dim: int = 32,
    heads: int = 4,
    context: int = 512,
) -> LlamaForCausalLM:
    """A random Llama for tests: a pass takes a millisecond, its text varies and never ends."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=dim,
        intermediate_size=2 * dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        max_position_embeddings=context,
        initializer_range=0.3,  # with the usual 0.02 every context gives nearly the same logits
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()
