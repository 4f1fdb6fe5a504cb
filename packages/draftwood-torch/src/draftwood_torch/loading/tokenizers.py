"""Tokenizers that Transformers alone can read: vocabularies without a tokenizer.json."""

from pathlib import Path
from typing import Any

from draftwood.loading.folders import understood


def read_tokenizer(folder: Path) -> Any:
    """Read a folder's tokenizer in Transformers.

    Raises:
        ValueError: for files that it does not understand.
    """
    from transformers import AutoTokenizer

    with understood(folder):
        return AutoTokenizer.from_pretrained(folder)
