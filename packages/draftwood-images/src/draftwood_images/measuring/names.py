"""Names of pictures to measure on."""

import unicodedata
from collections.abc import Sequence

import numpy as np

CHARACTERS = range(0x1F300, 0x1FB00)
"""Characters whose names are drawn, where the model knows all of their words."""


def names_for(words: Sequence[str], count: int) -> list[str]:
    """Names of characters all of whose words a model knows, or its words; evenly spread.

    Raises:
        ValueError: for a model that lists no words.
    """
    if not words:
        raise ValueError("this model lists no words; name what to draw with --names A,B,C")
    known, found = set(words), list[str]()
    for code in CHARACTERS:
        parts = unicodedata.name(chr(code), "").lower().replace("-", " ").split()
        if parts and known.issuperset(parts):
            found.append(" ".join(parts))
    found = found or list(words)
    places = np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)
    return [found[place] for place in places]
