"""Tests of the built-in model are skipped where it cannot be had, and fail in continuous
integration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import shape_checks
from checkout import ROOT
from draftwood.sampling import Sampling


@pytest.mark.parametrize(
    ("ci", "fails"), [("true", True), ("1", True), ("", False), ("false", False)]
)
def test_without_the_built_in_model(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ci: str, fails: bool
) -> None:
    here = str(ROOT / "conftest.py")
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(plugin for plugin in plugins if getattr(plugin, "__file__", None) == here)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "built_in_model_problem", lambda: "no network")
    raised = pytest.fail.Exception if fails else pytest.skip.Exception
    with pytest.raises(raised, match="the built-in model cannot be had: no network"):
        conftest.pytest_runtest_setup(SimpleNamespace(keywords={"model": True}))


def test_shapes_are_checked() -> None:
    rows = torch.zeros(2, 5)
    for _ in range(3):
        assert Sampling().probs(rows).shape == (2, 5)
        with pytest.raises(jaxtyping.TypeCheckError, match="logits"):
            Sampling().probs(rows[0, 0])


@pytest.fixture
def first() -> Callable[..., torch.Tensor]:
    @jaxtyping.jaxtyped(typechecker=shape_checks.check)
    def first(
        table: Float[Tensor, "rows columns"], rows: Sequence[int], wrong: bool = False
    ) -> Float[Tensor, " columns"]:
        return table[: 2 if wrong else 1].reshape(-1)

    return first


def test_what_was_right_once_is_no_excuse_for_others(first: Callable[..., torch.Tensor]) -> None:
    for size in (3, 4, 3, 3):
        assert first(torch.ones(2, size), [1, 2]).shape == (size,)
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        first(torch.ones(2, 3), [1, 2], True)
    for wrong in (torch.ones(2, 3).int(), torch.ones(2, 3, 1), [[1.0]], None):
        with pytest.raises(jaxtyping.TypeCheckError, match="table"):
            first(wrong, [1, 2])
    for many in ([1] * 20, [1.5] * 20, [1] * 20):
        if many[0] == 1:
            assert first(torch.ones(2, 3), many).shape == (3,)
        else:
            with pytest.raises(jaxtyping.TypeCheckError, match="rows"):
                first(torch.ones(2, 3), many)


def test_a_class_with_shapes_is_checked_when_it_is_made() -> None:
    @jaxtyping.jaxtyped(typechecker=shape_checks.check)
    @dataclass(frozen=True)
    class Pair:
        one: Float[Tensor, " size"]
        other: Float[Tensor, " size"]

    for _ in range(3):
        assert Pair(torch.ones(3), torch.ones(3)).one.shape == (3,)
        with pytest.raises(jaxtyping.TypeCheckError, match="other"):
            Pair(torch.ones(3), torch.ones(4))


def test_a_function_within_another_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[object] = []

    def counted(function: object) -> object:
        checks.append(function)
        return shape_checks.check(function)

    def make() -> Callable[..., torch.Tensor]:
        @jaxtyping.jaxtyped(typechecker=counted)
        def twice(row: Float[Tensor, " columns"]) -> Float[Tensor, " columns"]:
            return row * 2

        return twice

    for _ in range(5):
        assert make()(torch.ones(4)).shape == (4,)
    assert len(checks) == 2  # of what it is given, and of what it gives


def test_functions_of_the_same_code_may_ask_for_other_shapes() -> None:
    def make(size: int) -> Callable[..., torch.Tensor]:
        @jaxtyping.jaxtyped(typechecker=shape_checks.check)
        def same(row: Float[Tensor, f"{size}"]) -> Float[Tensor, " columns"]:
            return row

        return same

    assert make(3)(torch.ones(3)).shape == (3,)
    with pytest.raises(jaxtyping.TypeCheckError, match="row"):
        make(4)(torch.ones(3))
