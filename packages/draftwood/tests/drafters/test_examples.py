"""Examples in drafters' docstrings: each has one, and those that run give what they say."""

import doctest
import inspect

import pytest

import draftwood.drafters
import draftwood.shapes
import draftwood_methods.drafters
from draftwood.costs.budget import Budget
from draftwood.methods import known_parts
from draftwood.native import library
from draftwood.testing import one_step, writing

PACKAGES = (draftwood.drafters, draftwood.shapes, draftwood_methods.drafters)
DRAFTERS = {each.__name__: each for each in known_parts().drafters.values()}
NAMES = {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
NAMES |= DRAFTERS
RUN = [name for name, each in DRAFTERS.items() if ">>>" in (each.__doc__ or "")]
NEEDS_LIBRARY = {"MultiSource", "SuffixDecoding"}


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_has_an_example_of_five_tokens(name: str) -> None:
    _, found, example = inspect.cleandoc(DRAFTERS[name].__doc__ or "").partition("Example:")
    assert found
    assert ">>>" in example or any(text in example for text in ("1 2 3 4 5", "1 2 3 1 2"))


@pytest.mark.parametrize("name", RUN)
def test_examples_give_what_they_say(name: str) -> None:
    if name in NEEDS_LIBRARY and not library.available():
        pytest.skip("there is no C++ compiler")
    assert failures(DRAFTERS[name].__doc__ or "", name) == 0


def failures(text: str, name: str) -> int:
    names = {**NAMES, "Budget": Budget, "one_step": one_step, "writing": writing}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert test.examples
    return doctest.DocTestRunner().run(test).failed


def test_a_wrong_example_is_found() -> None:
    assert failures(">>> one_step(Nothing(), writing([1, 2]), [2, 1]).then\n2", "right") == 0
    assert failures(">>> one_step(Nothing(), writing([1, 2]), [2, 1]).then\n1", "wrong") == 1
    assert len(RUN) >= 14
