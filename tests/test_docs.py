"""What the documents show works, and generated pages are current."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from own_package import write

ROOT = Path(__file__).resolve().parents[1]


def python_blocks(path: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S))


def run(code: str, given: str = "", seconds: float = 280) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


ALL_IN_TURN = """if True:
    import io, json, sys
    from contextlib import redirect_stdout
    told = {}
    for name, code in json.load(sys.stdin).items():
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
        told[name] = printed.getvalue()
    print(json.dumps(told))
"""


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readme_blocks_and_examples_run() -> None:
    """One after the other in one process, which imports PyTorch once."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert examples
    code = {path.name: path.read_text() for path in examples}
    readme = {"README.md": python_blocks(ROOT / "README.md")}
    told = json.loads(run(ALL_IN_TURN, json.dumps({**readme, **code}), 800))
    assert "January" in told["README.md"]
    assert told.keys() == {"README.md", *code}
    for name in code:
        assert told[name].strip(), name
        assert "the same tokens: False" not in told[name], name


def test_what_fails_in_the_midst_is_no_success() -> None:
    """Negative control."""
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(ALL_IN_TURN, json.dumps({"fine": "print(1)", "wrong": "1 / 0"}))


def test_the_page_on_adding_a_method_runs(tmp_path: Path) -> None:
    folder = write(tmp_path / "package")
    run(
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        + (folder / "check_mine.py").read_text()
    )


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generator().main() == 0, capsys.readouterr().out


def test_a_stale_page_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    module, page = generator(), tmp_path / "page.md"
    page.write_text("old\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "pages", lambda: {page: "new\n"})
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert module.main() == 1
    assert "page.md is out of date" in capsys.readouterr().out
    assert page.read_text() == "old\n"
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert module.main() == 0
    assert page.read_text() == "new\n"


def test_a_run_that_is_not_there_yet_is_named_so(tmp_path: Path) -> None:
    module = generator()
    assert module._shown(["draftwood", "bench", "show", str(tmp_path)]) == "Not measured yet."
    shown = module._shown(["draftwood", "bench", "show", "--markdown", "results/shadow"])
    assert "| auto-shadow |" in shown


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith(("http", "mailto")):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_readme_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in re.findall(r"^make ([\w-]+)", (ROOT / "README.md").read_text(), flags=re.M):
        assert f"\n{name}:" in makefile
