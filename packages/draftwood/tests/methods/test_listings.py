"""Written descriptions of methods agree with their parts."""

from dataclasses import replace

import pytest

import draftwood_methods
from draftwood import methods
from draftwood.methods.listings import Listing, own_listings, written_listings
from draftwood.methods.recipes import RECIPES
from draftwood.shapes import Widths
from draftwood_methods.verifiers.typical import Typical


def test_listings_are_what_the_recipes_say() -> None:
    said = [Listing.of(recipe) for recipe in RECIPES]
    assert said == list(own_listings().values()), "write them again with: make docs"
    others = [Listing.of(recipe) for recipe in draftwood_methods.RECIPES]
    assert [*said, *others] == list(written_listings().values()), "write them again with: make docs"


@pytest.mark.parametrize(
    "other", [{"verifier": Typical()}, {"shape": Widths((2, 2))}, {"summary": "another"}]
)
def test_another_recipe_has_another_listing(other: dict) -> None:
    recipe = next(each for each in RECIPES if each.name == "rsd-s")
    assert Listing.of(replace(recipe, **other)) != own_listings()["rsd-s"]


def test_a_name_and_its_recipe_are_asked_alike() -> None:
    for recipe in RECIPES:
        told = methods.spec(recipe.name)
        for name in ("needs", "uses", "drafts_ahead"):
            assert getattr(told, name) == getattr(methods.spec(recipe), name)
        assert methods.listing(recipe.name).lossless == recipe.lossless


def test_known_methods_are_listed_in_their_order() -> None:
    assert list(methods.listings()) == list(methods.known())


def test_a_method_that_writes_whole_answers_is_told_with_the_command_that_runs_it() -> None:
    pytest.importorskip("draftwood_choices")
    told = "method 'distinct' writes whole answers: 'draftwood generate .*--method distinct.*' runs"
    with pytest.raises(ValueError, match=told):
        methods.listing("distinct")
    with pytest.raises(ValueError, match=told):
        methods.recipe("distinct")
