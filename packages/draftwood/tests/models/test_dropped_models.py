"""A dropped model's weights are freed at once, not when Python next looks for cycles."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import draftwood
from command_models import save_model
from draftwood.models.native.weights import NativeWeights


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("method", ["plain", "auto", "rsd-c"])
def test_weights_of_a_dropped_model_are_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, dtype: str
) -> None:
    made, make = list[Any](), NativeWeights.__init__

    def make_and_note(weights: NativeWeights, *given: Any, **more: Any) -> None:
        made.append(ref(weights))
        make(weights, *given, **more)

    monkeypatch.setattr(NativeWeights, "__init__", make_and_note)
    folder = save_model(tmp_path / "model")
    more: Any = {"draft_model": save_model(tmp_path / "draft", layers=2)} if "rsd" in method else {}
    lm = draftwood.load(folder, method=method, dtype=dtype, **more)
    lm.generate("x", max_new_tokens=8, raw=True)
    living = [each for each in made if each()]  # others have laid out files
    assert len(living) == 1 + len(more)
    del lm
    assert not any(each() for each in made)
