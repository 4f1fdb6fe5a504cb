"""Answers whose code runs with a task's tests."""

import json
from pathlib import Path

import pytest

from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import DATA_SETS, load_prompts
from draftwood_bench.run import tested_code
from draftwood_bench.run.quality import score
from draftwood_bench.run.tested_code import code_of, passes

TESTS = "assert double(2) == 4\nassert double(-1) == -2"
RIGHT = "def double(x):\n    return 2 * x\n"


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"Here it is:\n\n```python\n{RIGHT}```\n\nIt doubles.\n```\ndouble(3)\n```",
        f"1. Like so:\n   ```py\n   {RIGHT.replace(chr(10), chr(10) + '   ').rstrip()}\n   ```",
        f"```\n{RIGHT}",  # cut before its end
    ],
)
def test_right_code_passes(text: str) -> None:
    assert passes(text, TESTS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It doubles.",
        "def double(x):\n    return x + x if x > 0 else 0\n",
        f"{RIGHT}raise SystemExit(0)  # before a test could fail",
        f"{RIGHT}import os\nos._exit(0)",
        f"{RIGHT}for _ in iter(int, 1): pass",
        f"{RIGHT}_ = bytearray(1 << 34)",
    ],
)
def test_everything_else_does_not(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_code, "SECONDS", 1.0)
    assert not passes(text, TESTS)


def test_the_first_block_is_the_code() -> None:
    assert code_of("a\n```\nb\n```\nc\n```\nd\n```") == "b\n"
    assert code_of("a\nb") == "a\nb"


def test_only_the_set_that_says_so_runs_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"task_id": 1, "text": "Double x.", "test_setup_code": "", "test_list": TESTS.split("\n")}
    file = tmp_path / DATA_SETS["mbpp"].file
    file.parent.mkdir()
    file.write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path))
    (read,), (run,) = load_prompts("mbpp").prompts, load_prompts("mbpp-run").prompts
    assert read == Prompt("mbpp-1", "coding", run.turns)
    assert score(read, RIGHT) is None
    assert score(run, RIGHT) == {"name": "tests passed", "value": 1.0}
    assert score(run, "def double(x): ...") == {"name": "tests passed", "value": 0.0}
