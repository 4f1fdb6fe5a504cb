"""Python's search for garbage stops during imports and loads, and goes on behind them."""

import gc
import sys

import pytest

import draftwood
from draftwood.lazy import Uncollected
from draftwood.loading.models import load_model


def test_stretches_may_overlap() -> None:
    work, other = Uncollected(), Uncollected()
    with work:
        with other, work:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_one_that_does_not_collect_goes_on_so() -> None:
    gc.disable()
    try:
        with Uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_errors_let_it_look_again() -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        draftwood.load("/no/such/folder")
    assert gc.isenabled()


def test_loads_do_without(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[bool]()

    def load(*names: object, **more: object) -> object:
        seen.append(gc.isenabled())
        return load_model(*names, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(sys.modules["draftwood.loading.draft_models"], "load_model", load)
    draftwood.load(target)
    assert seen == [False]
    assert gc.isenabled()
