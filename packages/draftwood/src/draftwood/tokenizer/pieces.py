"""Vocabularies of SentencePiece: blanks are letters, and bytes stand for what has no token."""

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers

BLANK = "\u2581"
"""Stands for a blank."""


def set_blanks(backend: Backend, before: str = "first") -> None:
    """Let a tokenizer put a blank before texts, as Llama's does.

    Args:
        before: ``first`` for the text alone, ``always`` for what follows a special token too,
            ``never`` for none.
    """
    backend.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme=before, split=False)
    strip = [] if before == "never" else [decoders.Strip(" ", left=1)]
    backend.decoder = decoders.Sequence([*to_text(), *strip])


def to_text() -> list[Any]:
    """Steps of a decoder from pieces to text."""
    return [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
