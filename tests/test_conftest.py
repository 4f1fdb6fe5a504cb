"""Tests of the built-in model are skipped where it cannot be had, and fail in continuous
integration.
"""

from pathlib import Path
from types import SimpleNamespace

import jaxtyping
import pytest
import torch

from draftwood.sampling import Sampling


@pytest.mark.parametrize(
    ("ci", "fails"), [("true", True), ("1", True), ("", False), ("false", False)]
)
def test_without_the_built_in_model(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ci: str, fails: bool
) -> None:
    here = str(Path(__file__).with_name("conftest.py"))
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(plugin for plugin in plugins if getattr(plugin, "__file__", None) == here)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "built_in_model_problem", lambda: "no network")
    raised = pytest.fail.Exception if fails else pytest.skip.Exception
    with pytest.raises(raised, match="the built-in model cannot be had: no network"):
        conftest.pytest_runtest_setup(SimpleNamespace(keywords={"model": True}))


def test_shapes_are_checked() -> None:
    rows = torch.zeros(2, 5)
    assert Sampling().probs(rows).shape == (2, 5)
    with pytest.raises(jaxtyping.TypeCheckError, match="logits"):
        Sampling().probs(rows[0, 0])
