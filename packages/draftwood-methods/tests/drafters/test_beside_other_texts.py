"""Texts that run other layers of the target, beside those that run all of them."""

import pytest

from draftwood import engine, methods
from draftwood.engine import Options
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.testing import tiny_llama

pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")


@pytest.mark.parametrize("beside", ["ppd", "propd", "early-exit", "del"])
@pytest.mark.parametrize("method", ["plain", "auto"])
def test_a_text_that_runs_other_layers_is_no_trouble(method: str, beside: str) -> None:
    """Their passes are others, so that one makes steps in a row and the other does not."""
    model = NativeModel(tiny_llama(3, layers=4), "float32")

    def texts(*names: str) -> list[list[int]]:
        built = [methods.build(name, model) for name in names]
        options = Options(max_new_tokens=20, seed=1)
        several = [engine.Sequence(model, m.drafter, m.verifier, [5, 3, 2], options) for m in built]
        found: list[list[int]] = [[] for _ in several]
        for number, step in engine.generate_batch(several):
            found[number] += step.tokens
        return found

    assert texts(method, beside, method) == [*texts(method), *texts(beside), *texts(method)]
