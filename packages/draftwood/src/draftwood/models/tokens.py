"""Tokens that are not of a model's vocabulary are refused, by name."""

from typing import Any

import numpy as np

from draftwood.arrays import as_array


def require_part(tokens: Any, vocabulary: int) -> None:
    """Raise ValueError unless these, an array or a tensor, are tokens of the vocabulary."""
    wrong = _outside(tokens, vocabulary)
    if wrong:
        raise ValueError(
            f"tokens of a part must be 0 to {vocabulary - 1}, the model's vocabulary, got"
            f" {wrong[:8]}"
        )


def beyond(tokens: Any, vocabulary: int) -> str:
    """Says of a prompt that some of its tokens are not of the vocabulary."""
    found = _outside(tokens, vocabulary)
    some = ", ".join(map(str, found[:8])) + (
        f" and {len(found) - 8} more" if len(found) > 8 else ""
    )
    return (
        f"token ids must be 0 to {vocabulary - 1}, the model's vocabulary, got {some}; encode the"
        " prompt with the model's own tokenizer"
    )


def _outside(tokens: Any, vocabulary: int) -> list[int]:
    given = np.asarray(as_array(tokens))
    return np.unique(given[(given < 0) | (given >= vocabulary)]).tolist()
