"""Writes the generated pages: the table of methods and the results. A test checks that they are current.

make docs
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from data import markdown  # noqa: E402


def methods_page() -> str:
    from draftwood.methods import RECIPES

    rows = [
        (
            f"`{recipe.name}`",
            recipe.summary,
            recipe.drafter,
            f"{recipe.shape.name}, {recipe.shape.nodes} nodes" if recipe.shape else "",
            recipe.verifier.name,
            "yes" if recipe.lossless else "**no**",
            recipe.source,
        )
        for recipe in RECIPES.values()
    ]
    head = ("method", "what it does", "drafter", "shape", "verifier", "lossless", "source")
    return (
        "# Methods\n\nWritten by `make docs` from `src/draftwood/methods.py`. The shapes are defaults; any shape goes\n"
        "with any drafter that takes one, any verifier with any shape for which it is exact.\n\n"
        + markdown(head, rows)
        + "\n\n`draft-model` methods need a second, smaller model of the same vocabulary: `--draft-model`.\n"
    )


def results_page() -> str:
    """The frame in ``results.md.in`` with each ``{{ command }}`` replaced by what the command prints."""
    frame = (ROOT / "docs" / "results.md.in").read_text()
    parts = frame.split("{{")
    page = [parts[0]]
    for part in parts[1:]:
        command, rest = part.split("}}", 1)
        done = subprocess.run(
            [sys.executable, *command.split()], capture_output=True, text=True, check=True, cwd=ROOT / "benchmarks"
        )
        printed = done.stdout.strip().splitlines()
        if printed and printed[-1].startswith("{"):  # for machines
            printed.pop()
        page += ["\n".join(printed).strip(), rest]
    return "".join(page)


def pages() -> dict[Path, str]:
    return {ROOT / "docs" / "methods.md": methods_page(), ROOT / "docs" / "results.md": results_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
    print(json.dumps({"written": [str(path.relative_to(ROOT)) for path in pages()]}))
