"""Stores of prefixes, where a model's cache has blocks to keep."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwood.models.model import PrefixStore
    from draftwood.text.language_model import LanguageModel


def prefixes_of(lm: "LanguageModel") -> "PrefixStore | None":
    """A store that keeps what earlier requests have computed: the model's own where it has one.

    None for a cache without blocks.
    """
    from draftwood.models.native.prefixes import Prefixes

    holder = getattr(getattr(lm.model, "pool", None), "holder", None)
    if isinstance(holder, Prefixes):
        return holder
    try:
        return Prefixes(lm.model)  # type: ignore[arg-type]
    except ValueError:
        return None
