"""Published methods as combinations of a drafter, a shape and a verifier: a method's one line.

One file for each kind of drafts, so that a method imports the drafters of its own kind alone.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwood.methods.composition import MethodSpec

_FILES = ("auto", "plain", "copies", "draft_models", "heads", "int4", "jacobi")


def own_recipes() -> "Iterator[MethodSpec]":
    """Yield draftwood's own recipes; a file is imported when its turn comes."""
    for file in _FILES:
        yield from import_module(f"{__name__}.{file}").RECIPES


def __getattr__(name: str) -> "tuple[MethodSpec, ...]":
    """Give all of them as ``RECIPES``, as a package's module does."""
    if name == "RECIPES":
        return tuple(own_recipes())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
