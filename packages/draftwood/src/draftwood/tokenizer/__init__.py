"""Text to tokens and back, and chats in a model's template, without Transformers.

A tokenizer is read from a model folder or made of a GGUF file's metadata. It does what the
tokenizers of Transformers do for a model that writes text, and these fit in its place.
"""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.tokenizer.folder import open_tokenizer
    from draftwood.tokenizer.gguf import tokenizer_of_gguf
    from draftwood.tokenizer.protocol import AnyTokenizer
    from draftwood.tokenizer.tokenizer import Tokenizer

_HOMES = {
    "draftwood.tokenizer.folder": ("open_tokenizer",),
    "draftwood.tokenizer.gguf": ("tokenizer_of_gguf",),
    "draftwood.tokenizer.protocol": ("AnyTokenizer",),
    "draftwood.tokenizer.tokenizer": ("Tokenizer",),
}
__all__ = ["AnyTokenizer", "Tokenizer", "open_tokenizer", "tokenizer_of_gguf"]
__getattr__ = importer(__name__, _HOMES)
