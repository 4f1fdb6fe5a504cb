"""Recipes by name: each is a file of ``training/recipes``."""

from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from draftwood_train.recipe import DrafterRecipe


def recipe_class(name: str) -> type[DrafterRecipe]:
    """The recipe in the file of this name.

    Raises:
        ValueError: for an unknown one.
    """
    known = sorted(path.stem for path in (Path(__file__).parent / "recipes").glob("[!_]*.py"))
    if name not in known:
        raise ValueError(f"there is no recipe {name!r}, there are: {', '.join(known)}")
    module = import_module(f"draftwood_train.recipes.{name}")
    return next(
        cast(type[DrafterRecipe], each)
        for each in vars(module).values()
        if isinstance(each, type) and is_dataclass(each) and getattr(each, "name", None) == name
    )
