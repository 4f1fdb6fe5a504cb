"""Tokenizers that Transformers alone can read: vocabularies without a tokenizer.json."""

from pathlib import Path
from typing import Any

from draftwood.loading.folders import understood

COPIES = {"DreamTokenizer": "Qwen2Tokenizer"}
"""Classes that folders bring code for, and those of Transformers that they are copies of."""


def read_tokenizer(folder: Path) -> Any:
    """Read a folder's tokenizer in Transformers, without code of the folder.

    Raises:
        ValueError: for files that it does not understand, and for a class of the folder's own.
    """
    import transformers
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    with understood(folder):
        told = get_tokenizer_config(folder)
    name = told.get("tokenizer_class")
    if "AutoTokenizer" in told.get("auto_map", {}) and name not in COPIES:
        raise ValueError(
            f"the tokenizer in {folder} is a program of its own ({name}), which is not run; put a"
            " tokenizer.json of the same tokens into the folder"
        )
    with understood(folder):
        if name in COPIES:
            return getattr(transformers, COPIES[name]).from_pretrained(folder)
        return transformers.AutoTokenizer.from_pretrained(folder)
