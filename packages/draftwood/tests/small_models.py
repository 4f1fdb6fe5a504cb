"""A tokenizer of bytes, and tiny models that write with it."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MERGES = [("{", '"'), ('"', ":"), ('"', ","), ("t", "r"), ("u", "e"), ("tr", "ue"), ("}", "}")]
END = "<end>"


def tokenizer_of(
    alphabet: Sequence[str], merges: Sequence[tuple[str, str]] = ()
) -> PreTrainedTokenizerFast:
    """Characters of the byte-level alphabet, pairs of them, and a token that ends a text."""
    words = [*alphabet, *("".join(pair) for pair in merges), END]
    made = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


def bytes_and_pairs() -> PreTrainedTokenizerFast:
    """Every byte, and some pairs that cross the parts of JSON."""
    return tokenizer_of(sorted(pre_tokenizers.ByteLevel.alphabet()), MERGES)
