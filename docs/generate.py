"""Writes the generated pages: methods, models, Transformers' options, results, and README's table
of methods.

A test checks that they are current.

python docs/generate.py            # or: make docs
python docs/generate.py --check    # exit code 1 where a page is out of date
"""

import argparse
import io
import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from data import markdown  # noqa: E402

if TYPE_CHECKING:
    from draftwood.bench.report.reading import Measured

END = "<!-- end -->\n"


def methods_page() -> str:
    from draftwood.methods.recipes import RECIPES

    rows = [
        (
            f"`{recipe.name}`",
            recipe.summary,
            recipe.drafter.name,
            f"{recipe.shape.label}, {recipe.shape.nodes} nodes" if recipe.shape else "",
            recipe.verifier.name,
            recipe.promise if recipe.lossless else f"**{recipe.promise}**",
            recipe.source,
        )
        for recipe in RECIPES
    ]
    head = ("method", "what it does", "drafter", "shape", "verifier", "promise", "source")
    return (
        "# Methods\n\nWritten by `make docs` from `src/draftwood/methods/recipes.py`. The shapes"
        " are defaults; any shape goes\nwith any drafter that takes one, any verifier with any"
        " shape for which it is exact.\n\n"
        + markdown(head, rows)
        + "\n\n`draft-model` methods need a second, smaller model of the same vocabulary:"
        " `--draft-model`.\n"
    )


def models_page() -> str:
    """The frame in ``models.md.in`` with the families that have code of their own, and others that
    the tests run.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    from draftwood.loading.gguf_settings import ARCHITECTURES
    from draftwood.models.families import FAMILIES
    from families import FAMILIES as TESTED

    files: dict[str, list[str]] = {}
    for name, known in ARCHITECTURES.items():
        files.setdefault(CLASSES[known.model_type], []).append(f"`{name}`")
    own = [
        (family.title, f"`{name}`", ", ".join(files.get(name, ())))
        for name, family in FAMILIES.items()
    ]
    tested = {CLASSES[getattr(transformers, config).model_type] for config, _ in TESTED.values()}
    others = [
        (f"`{name}`", ", ".join(files.get(name, ())))
        for name in sorted((tested | set(files)) - set(FAMILIES))
    ]
    frame = (ROOT / "docs" / "models.md.in").read_text()
    for name, head, rows in (
        ("own", ("family", "class in Transformers", "GGUF"), own),
        ("others", ("class in Transformers", "GGUF"), others),
    ):
        frame = frame.replace("{{ " + name + " }}", markdown(head, rows))
    return frame


def transformers_page() -> str:
    from draftwood.text.hooks.options import ARGUMENTS, OPTIONS

    frame = (ROOT / "docs" / "transformers.md.in").read_text()
    for name, table in (("arguments", ARGUMENTS), ("options", OPTIONS)):
        rows = [(f"`{option}`", said.outcome, said.remark) for option, said in table.items()]
        frame = frame.replace("{{ " + name + " }}", markdown((name[:-1], "here", "remark"), rows))
    return frame


def results_page() -> str:
    """The frame in ``results.md.in`` with each ``{{ command }}`` replaced by what the command
    prints.
    """
    frame = (ROOT / "docs" / "results.md.in").read_text()
    parts = frame.split("{{")
    page = [parts[0]]
    for part in parts[1:]:
        command, rest = part.split("}}", 1)
        printed = _printed(command.split()).strip().splitlines()
        if printed and printed[-1].startswith("{"):  # for machines
            printed.pop()
        page += ["\n".join(printed).strip(), rest]
    return "".join(page)


def headlines() -> str:
    """What stands in front: figures of the runs in ``benchmarks/results``, decoding alone and end
    to end.
    """
    from draftwood.bench.report.headlines import peer_sentence, quality_sentence, speed_sentences

    runs = {name: measured(name) for name in ("methods", "tinyllama", "peers")}
    quality = json.loads((BENCHMARKS / "results" / "int8_quality.json").read_text())
    sentences = [
        *speed_sentences(runs["methods"], "auto"),
        *speed_sentences(runs["tinyllama"], "auto"),
        peer_sentence(runs["peers"], "auto"),
        quality_sentence(quality),
        (
            "**Nothing here has run on a GPU.** The CUDA path is tested on CPUs, except for"
            " recording its graphs."
        ),
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def table_of_methods() -> str:
    """Methods that a run in ``benchmarks/results`` measured, and the names of the others."""
    from draftwood.bench.records.files import RUN
    from draftwood.bench.report.methods_table import methods_table, unmeasured

    runs = [
        measured(path.parent.name) for path in sorted((BENCHMARKS / "results").glob(f"*/{RUN}"))
    ]
    others = ", ".join(f"`{name}`" for name in unmeasured(runs))
    return f"{methods_table(runs).markdown()}\n\nNot measured yet: {others}."


@cache
def measured(name: str) -> "Measured":
    """A run in ``benchmarks/results``."""
    from draftwood.bench.report.reading import read

    return read(BENCHMARKS / "results" / name)


def filled(path: Path) -> str:
    """A page with its generated parts as they should be."""
    text = path.read_text()
    for name, part in PARTS.items():
        begin = f"<!-- {name}, written by `make docs` -->\n"
        if begin in text:
            before, rest = text.split(begin)
            text = f"{before}{begin}\n{part()}\n\n{END}{rest.split(END, 1)[1]}"
    return text


PARTS = {"figures": headlines, "table of methods": table_of_methods}


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    docs = ROOT / "docs"
    found = {
        docs / "methods.md": methods_page(),
        docs / "models.md": models_page(),
        docs / "transformers.md": transformers_page(),
        docs / "results.md": results_page(),
    }
    return found | {path: filled(path) for path in (ROOT / "README.md", docs / "findings.md")}


def _printed(command: list[str]) -> str:
    """What a script of ``benchmarks`` prints; in this process, for the libraries take longer to
    import than it runs.
    """
    printed = io.StringIO()
    with _as_script(command), redirect_stdout(printed):
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{' '.join(command)} ended with {end.code}") from end
    return printed.getvalue()


@contextmanager
def _as_script(command: list[str]) -> Iterator[None]:
    arguments, folder = sys.argv, Path.cwd()
    sys.argv = command
    os.chdir(BENCHMARKS)
    try:
        yield
    finally:
        sys.argv = arguments
        os.chdir(folder)


def main() -> int:
    """Write or check the pages; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 where a page is out of date",
    )
    arguments = parser.parse_args()
    stale = {path: text for path, text in pages().items() if path.read_text() != text}
    for path, text in stale.items():
        if not arguments.check:
            path.write_text(text)
        print(
            f"{path.relative_to(ROOT)}"
            f" {'is out of date: run `make docs`' if arguments.check else 'written'}"
        )
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
