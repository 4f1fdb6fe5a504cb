"""Every recipe refuses words that its settings do not have."""

from dataclasses import fields
from typing import Literal, get_origin, get_type_hints

import pytest

from draftwood_train.cli.recipe import recipe_names
from draftwood_train.registry import recipe_class

WORDS = [
    (name, each.name)
    for name in recipe_names()
    for each in fields(recipe_class(name))  # type: ignore[arg-type]
    if get_origin(get_type_hints(recipe_class(name))[each.name]) is Literal
]


@pytest.mark.parametrize(("name", "setting"), WORDS)
def test_unknown_words_are_refused(name: str, setting: str) -> None:
    recipe = recipe_class(name)
    with pytest.raises(ValueError, match=f"^{setting} is one of .*, not 'other'$"):
        recipe(**{setting: "other"})
