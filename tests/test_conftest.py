"""Tests are parted in two commands, shapes are checked, and the built-in model's tests are skipped
where it cannot be had, but fail in continuous integration.
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import shape_checks
from checkout import ROOT
from draftwood.sampling import Sampling
from thinning import thinned


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


def lines_of(file: str) -> list[str]:
    return (ROOT / file).read_text().splitlines()


def test_two_commands_run_every_test_once_and_ci_runs_both() -> None:
    told = [line for line in lines_of("Makefile") if line.startswith("\t$(PYTEST) -m")]
    assert [re.sub(r"\s+--durations.*", "", line.partition("-m ")[2]) for line in told[:2]] == [
        '"not proof"',
        "proof",
    ]
    ci = lines_of(".ci/run")
    assert [line for line in ci if line.startswith("make")] == ["make test", "make proof"]
    assert {"unset DRAFTWOOD_DATA", "DRAFTWOOD_HOME=$(mktemp -d)"} <= set(ci)


def marks_of(case: Any) -> list[str]:
    return [mark.name for mark in case.marks]


def test_a_thinned_list_keeps_all_cases_and_leaves_most_to_the_proof() -> None:
    cases = thinned([1, 2, pytest.param(3, id="three"), pytest.param(4, marks=pytest.mark.gpu)], 3)
    assert [case.values for case in cases] == [(1,), (2,), (3,), (4,)]
    assert [marks_of(case) for case in cases] == [[], ["proof"], ["proof"], ["gpu"]]
    assert cases[2].id == "three"
    pairs = thinned([(1, 2), (3, 4)], 2, first=1)
    assert [(case.values, marks_of(case)) for case in pairs] == [((1, 2), ["proof"]), ((3, 4), [])]


LONG_ALTOGETHER = {  # and what is quick of the same
    "test_adapted_texts.py": "test_adapters.py",
    "test_complete_page.py": "test_page_files.py",
    "test_data_built_in_model.py": "test_data_write.py",
    "test_page.py": "test_page_files.py",
    "test_pictures_page.py": "test_bench_pictures.py",
    "test_release.py": "test_package_layout.py",
    "test_replay_page.py": "test_served_masks.py",
    "test_tool_calls.py": "test_tools.py",
}


def is_long(marked: str) -> bool:
    return re.search(r"mark\.(proof|model|gpu)\b", marked) is not None


def has_a_quick_test(path: Path) -> bool:
    """True unless every test of a file, or the file as a whole, is marked as long."""
    tree = ast.parse(path.read_text())
    own = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    tests = [node for node in functions if node.name.startswith("test_")]
    whole = any(is_long(each) for each in own if each.startswith("pytestmark"))
    alone = [[ast.unparse(each) for each in node.decorator_list] for node in tests]
    return not whole and any(
        not any(is_long(each) and "parametrize" not in each for each in marks) for marks in alone
    )


def test_every_file_keeps_a_quick_test() -> None:
    files = [path for path in ROOT.rglob("tests/**/test_*.py") if ".venv" not in path.parts]
    assert len(files) > 150
    assert {path.name for path in files if not has_a_quick_test(path)} == set(LONG_ALTOGETHER)
    assert {path.name for path in files} >= set(LONG_ALTOGETHER.values())


@pytest.mark.parametrize(
    ("text", "quick"),
    [
        ("pytestmark = [pytest.mark.proof]\ndef test_it(): ...\n", False),
        ("@pytest.mark.proof\ndef test_it(): ...\n", False),
        ("@pytest.mark.model\ndef test_it(): ...\ndef test_other(): ...\n", True),
        (
            "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.proof)])\n"
            "def test_it(x): ...\n",
            True,
        ),
    ],
)
def test_a_planted_file_of_long_tests_is_found(tmp_path: Path, text: str, quick: bool) -> None:
    (tmp_path / "test_one.py").write_text(text)
    assert has_a_quick_test(tmp_path / "test_one.py") == quick


def test_shapes_are_checked() -> None:
    rows = np.zeros((2, 5), np.float32)
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
