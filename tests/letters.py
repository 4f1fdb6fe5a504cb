"""A tokenizer of single letters."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LETTERS = "ĠabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ012345678._,"[:64]


def letters(tokens: Sequence[str] = LETTERS) -> PreTrainedTokenizerFast:
    """Tokens of a letter each; the first of the usual 64 is the space."""
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)
