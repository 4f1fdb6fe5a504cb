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
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(ROOT))  # scripts whose tables are shown

if TYPE_CHECKING:
    from draftwood.bench.report.reading import MeasuredRun

END = "<!-- end -->\n"


def methods_page() -> str:
    from draftwood.methods import needs_draft_model, needs_drafter
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
    second, learnt = (
        ", ".join(f"`{recipe.name}`" for recipe in RECIPES if needs(recipe))
        for needs in (needs_draft_model, needs_drafter)
    )
    head = ("method", "what it does", "drafter", "shape", "verifier", "promise", "source")
    return (
        "# Methods\n\nWritten by `make docs` from `src/draftwood/methods/recipes.py`. The shapes"
        " are defaults; any shape goes\nwith any drafter that takes one, any verifier with any"
        " shape for which it is exact.\n\n"
        + markdown(head, rows)
        + f"\n\nA second, smaller model of the same vocabulary, `--draft-model`, need:\n{second}."
        f"\nA trained drafter of the model, `--drafter FOLDER`, need:\n{learnt}."
        "\n`draft-model` and `lm` methods draft while the target runs where"
        " `--overlap` asks for it, as in PEARL (Liu et\nal. 2024, arXiv:2408.11850):"
        " [how it works](how-it-works.md#drafting-while-the-target-runs).\n\nTwo published methods"
        " are missing because they ask for models of"
        " their own, trained from the start for\nthem: SPEED (Hooper et al. 2023, arXiv:2310.12072)"
        " shares the weights of its layers, so that tokens in\ndifferent layers run side by side,"
        " and the Insertion Transformer (Stern et al. 2019, arXiv:1902.03249)\nputs tokens anywhere"
        " into a text instead of after it. `distance`, the other rule of blockwise parallel\n"
        "decoding, keeps tokens whose ids are near: for intensities of pixels, so no method of text"
        " uses it.\n"
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
    from draftwood.models.recurrences.known import RECURRENCES
    from families import FAMILIES as TESTED
    from hybrids import HYBRIDS

    files: dict[str, list[str]] = {}
    for name, known in ARCHITECTURES.items():
        files.setdefault(CLASSES[known.model_type], []).append(f"`{name}`")
        if known.of_experts is not None:
            files.setdefault(CLASSES[known.of_experts], []).append(f"`{name}`")
    own = [
        (family.title, f"`{name}`", ", ".join(files.get(name, ())))
        for name, family in FAMILIES.items()
    ]
    tested = {CLASSES[getattr(transformers, config).model_type] for config, _ in TESTED.values()}
    others = [
        (f"`{name}`", ", ".join(files.get(name, ())))
        for name in sorted((tested | set(files)) - set(FAMILIES))
    ]
    hybrids = [
        (f"`{CLASSES[getattr(transformers, config).model_type]}`", f"`{layer}`", kind.title)
        for config in sorted({config for config, _ in HYBRIDS.values()})
        for layer, kind in RECURRENCES.items()
        if layer.startswith(config.removesuffix("Config").removesuffix("Text"))
    ]
    frame = (ROOT / "docs" / "models.md.in").read_text()
    for name, head, rows in (
        ("hybrids", ("class in Transformers", "layer", "recurrence"), hybrids),
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
    prints, and ``{{ identity }}`` by its table.
    """
    frame = (ROOT / "docs" / "results.md.in").read_text()
    parts = frame.split("{{")
    page = [parts[0]]
    for part in parts[1:]:
        command, rest = part.split("}}", 1)
        text = identity() if command.strip() == "identity" else _shown(command.split())
        page += [text.strip(), rest]
    return "".join(page)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from draftwood.bench.report.table import Table

    return Table("", tuple(head), tuple(tuple(row) for row in rows)).markdown()


def identity() -> str:
    """Greedy texts compared with plain decoding's, from ``identity.jsonl``, one line per pair."""
    lines = (BENCHMARKS / "results" / "identity.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    rows = [
        (
            each["pair"],
            f"{each['same']} of {each['prompts']}",
            f"{each['stats']['block_efficiency']:.2f}",
            str(each["stats"]["drafted"]),
        )
        for each in found
    ]
    texts = sum(each["prompts"] for each in found)
    different = texts - sum(each["same"] for each in found)
    return (
        markdown(("drafts and verifier", "texts the same", "tokens per run", "drafted"), rows)
        + f"\n\n{len(found)} pairs, {texts} texts, {different} of them different from plain"
        " decoding."
    )


def headlines() -> str:
    """What stands in front: figures of the runs in ``benchmarks/results``, decoding alone and end
    to end.
    """
    from draftwood.bench.report.headlines import peer_sentence, quality_sentence, speed_sentences

    runs = {name: measured(name) for name in ("head", "tinyllama", "peers")}
    sentences = [
        *speed_sentences(runs["head"], "auto"),
        *speed_sentences(runs["tinyllama"], "auto"),
        peer_sentence(runs["peers"], "auto"),
        quality_sentence(measured("quality")),
        (
            "**Nothing here has run on a GPU.** The CUDA path is tested on CPUs, except for"
            " recording its graphs."
        ),
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def table_of_methods() -> str:
    """Methods that a run in ``benchmarks/results`` measured, and the names of the others."""
    from draftwood.bench.plan.protocols import PROTOCOLS
    from draftwood.bench.records.files import RUN
    from draftwood.bench.report.methods_table import methods_table, unmeasured

    found = [
        measured(path.parent.name) for path in sorted((BENCHMARKS / "results").glob(f"*/{RUN}"))
    ]
    runs = [each for each in found if each.run.protocol in PROTOCOLS]
    others = ", ".join(f"`{name}`" for name in unmeasured(runs))
    return f"{methods_table(runs).markdown()}\n\nNot measured yet: {others}."


@cache
def measured(name: str) -> "MeasuredRun":
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


def drafter_tables() -> str:
    """Trained drafters at equal data, by question."""
    from benchmarks.training import growth, speed
    from benchmarks.training.drafters import TITLES, tables

    found = []
    for question, rows in tables():
        head = [name.replace("_", " ") for name in rows[0]]
        found += [f"**{TITLES[question]}**", markdown(head, [tuple(row.values()) for row in rows])]
    for page in (growth, speed):
        rows = page.rows()
        table = markdown(list(rows[0]), [tuple(row.values()) for row in rows])
        found += [f"**{page.TITLE}**", table]
    return "\n\n".join(found)


def server_tables() -> str:
    """The server beside other servers."""
    from benchmarks.common.json_lines import read
    from benchmarks.serving import neighbours
    from benchmarks.serving.show import shown, tables

    folder = BENCHMARKS / "results" / "serving"
    beside = [shown(table) for table in neighbours.tables(read(neighbours.RECORDS))]
    return "\n\n".join(
        [tables(read(folder / "run.jsonl"), read(folder / "further.jsonl")), *beside]
    )


def experiment_tables(name: str) -> str:
    """What an experiment on self-speculation gave; all of its tables."""
    from benchmarks.self_speculation.experiments import tables

    found = []
    for title, rows in tables(name):
        table = markdown(list(rows[0]), [tuple(row.values()) for row in rows])
        found += [f"**{title}**", table]
    return "\n\n".join(found)


def overlap_table() -> str:
    """Drafts made while the target runs, beside drafts in turn."""
    from benchmarks.common.json_lines import read
    from benchmarks.self_speculation import overlap

    rows = overlap.rows(read(overlap.RECORDS))
    return markdown(list(rows[0]), [tuple(row.values()) for row in rows])


def pruning_tables() -> str:
    """Trees that nodes leave in the midst of a pass."""
    from benchmarks.self_speculation import pruning

    found = []
    for temperature, rows in pruning.tables(pruning.RECORDS):
        table = markdown(list(rows[0]), [tuple(row.values()) for row in rows])
        found += [f"**T = {temperature:g}**", table]
    return "\n\n".join(found)


EXPERIMENTS = ("layers", "exits", "shadow", "windowed", "merged", "memory", "hybrids")
PARTS = {
    "figures": headlines,
    "table of methods": table_of_methods,
    "tables of drafters": drafter_tables,
    "tables of servers": server_tables,
    "table of overlap": overlap_table,
    "tables of pruning": pruning_tables,
    **{f"tables of {name}": partial(experiment_tables, name) for name in EXPERIMENTS},
}


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    docs = ROOT / "docs"
    found = {
        docs / "methods.md": methods_page(),
        docs / "models.md": models_page(),
        docs / "transformers.md": transformers_page(),
        docs / "results.md": results_page(),
    }
    parts = (ROOT / "README.md", docs / "findings.md", docs / "self-speculation.md")
    return found | {path: filled(path) for path in parts}


def _shown(command: list[str]) -> str:
    """What a command prints of the run that it ends with, where there is one."""
    from draftwood.bench.records.files import RUN

    is_there = (BENCHMARKS / command[-1] / RUN).is_file()
    return _printed(command) if is_there else "Not measured yet."


def _printed(command: list[str]) -> str:
    """What a command of draftwood prints in the folder of the benchmarks."""
    from draftwood.cli.main import main

    printed, folder = io.StringIO(), Path.cwd()
    os.chdir(BENCHMARKS)
    try:
        with redirect_stdout(printed):
            main(command[1:])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(command)} ended with {end.code}") from end
    finally:
        os.chdir(folder)
    return printed.getvalue()


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
