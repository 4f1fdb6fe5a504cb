"""A tokenizer of single letters."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LETTERS = "ĠabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345678._,"[:64]


def letters() -> PreTrainedTokenizerFast:
    """64 tokens, each a letter; the first is the space."""
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)
