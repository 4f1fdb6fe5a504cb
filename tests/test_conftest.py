"""Tests of the built-in model are skipped where it cannot be had, and fail in continuous integration."""

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(("ci", "fails"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_without_the_built_in_model(monkeypatch: pytest.MonkeyPatch, ci: str, fails: bool) -> None:
    import conftest

    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "built_in_model_problem", lambda: "no network")
    raised = pytest.fail.Exception if fails else pytest.skip.Exception
    with pytest.raises(raised, match="the built-in model cannot be had: no network"):
        conftest.pytest_runtest_setup(SimpleNamespace(keywords={"model": True}))
