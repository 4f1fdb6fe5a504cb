"""Imports point one way, files stay small, and importing the package costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "draftwood"

# What each part may import of the others, besides itself.
GROUND = {"options", "tree", "rng", "ranking", "sampling", "version", "native"}
AXES = {"drafters", "shapes", "verifiers"}
MAY_IMPORT = {
    "version": set(),
    "options": set(),
    "tree": set(),
    "native": {"models.folders", "models.progress"},
    "rng": {"native"},
    "prompts": {"options"},
    "ranking": {"native"},
    "sampling": {"options", "tree", "rng", "ranking", "native"},
    "stats": {"tree"},
    "budget": set(),
    "models": GROUND,
    "shapes": GROUND,
    "verifiers": GROUND,
    "drafters": GROUND | {"budget", "models", "shapes"},
    "engine": GROUND | {"models", "stats", "drafters.base", "verifiers.base"},
    "parts": GROUND | {"budget", "models", "drafters", "shapes"},
    "priors": GROUND | {"models", "drafters"},
    "methods": GROUND | {"budget", "models", "engine", "parts"} | AXES,
    "text": GROUND,
    "stream": GROUND | {"models", "engine", "stats", "text"},
    "language_model": GROUND | {"models", "engine", "methods", "priors", "prompts", "stats", "stream", "text"} | AXES,
    "hooks": GROUND | {"models", "engine", "methods", "stats"} | AXES,
}
FREE = {"cli", "server", "bench", "training", "testing", "checking", "__init__"}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Modules of draftwood that a file imports anywhere, without the leading package name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "draftwood":
            rest = node.module.removeprefix("draftwood").lstrip(".")
            found |= {rest} if rest else {name.name for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {n.name.removeprefix("draftwood.") for n in node.names if n.name.startswith("draftwood.")}
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in FREE:
        return
    assert part in MAY_IMPORT, f"{part} is new: say in this test what it may import"
    for module in imports_of(path):
        allowed = any(module == may or module.startswith(may + ".") for may in MAY_IMPORT[part] | {part})
        assert allowed, f"{path.relative_to(SOURCE)} must not import draftwood.{module}"


def test_methods_of_an_axis_do_not_know_each_other() -> None:
    for axis in sorted(AXES):
        for path in sorted((SOURCE / axis).glob("*.py")):
            if path.stem in ("__init__", "base"):
                continue
            siblings = {m.split(".")[1] for m in imports_of(path) if m.startswith(axis + ".")} - {"base"}
            shared = {
                *("draft_model", "widths"),  # layer_skip drafts like a draft model; independent chains are widths
                *("sources", "acceptance", "combined"),  # what merges sources, and what they have in common
                *("merged_sources", "native_sources"),
                *("n_grams", "suffix", "earlier_texts", "bigram_prior"),  # sources are parts of other drafters
            }
            assert siblings <= shared, f"{path.name} imports {siblings}"


def test_the_import_rule_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from draftwood.engine import generate\nimport draftwood.cli.main\nfrom draftwood import methods\n")
    assert imports_of(bad) == {"engine", "cli.main", "methods"}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 320, f"{path.name} is too long: a name is missing"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            documented = ast.get_docstring(node, clean=False) or ""
            code = (node.end_lineno or 0) - node.lineno - len(documented.splitlines())
            assert code <= 50, f"{path.name}: {node.name} has {code} lines of code"


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, draftwood; "
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'matplotlib', 'plotly', 'datasets', 'accelerate'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_using_the_library_loads_no_server_plot_or_training_package() -> None:
    code = (
        "import sys, draftwood; draftwood.load; draftwood.custom_generate; import draftwood.cli.main; "
        "heavy = {'fastapi', 'uvicorn', 'starlette', 'matplotlib', 'plotly', 'datasets', 'trl', 'peft'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
