"""Writes the generated pages: methods, models, Transformers' options, results, README's table of
methods, and the speeds that the package tells of its methods.

A test checks that they are current.

python docs/generate.py            # or: make docs
python docs/generate.py --check    # exit code 1 where a page is out of date
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "packages" / "draftwood-bench" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS.parent))  # scripts whose tables are shown

if TYPE_CHECKING:
    from draftwood_bench.report.reading import MeasuredRun

END = "<!-- end -->\n"
STATED = "head"  # the run whose figures of `auto` stand in front and in the table of methods


def methods_page() -> str:
    from draftwood.methods import known

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
        for recipe in known().values()
    ]
    second, learnt = (
        ", ".join(f"`{recipe.name}`" for recipe in known().values() if need in recipe.needs)
        for need in ("draft-model", "head")
    )
    head = ("method", "what it does", "drafter", "shape", "verifier", "promise", "source")
    return (
        "# Methods\n\nWritten by `make docs` from the recipes of `draftwood` and"
        " `draftwood-methods`. The shapes are defaults;\nany shape goes with any drafter that takes"
        " one, any verifier with any shape for which it is exact.\n\n"
        + markdown(head, rows)
        + f"\n\nA second, smaller model of the same vocabulary, `--draft-model`, need:\n{second}."
        f"\nA trained head of the model, `--draft-model NAME`, need:\n{learnt}."
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
        text = identity() if command.strip() == "identity" else shown(command.split())
        page += [text.strip(), rest]
    return "".join(page)


def shown(command: list[str]) -> str:
    """Output of a command about a run in ``benchmarks/results``, or a note that there is none."""
    there = (BENCHMARKS / command[-1]).is_dir()
    return _printed(command) if there else "(not measured yet)"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from draftwood_bench.report.table import Table

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
        markdown(("drafts and verifier", "texts the same", "tokens per pass", "drafted"), rows)
        + f"\n\n{len(found)} pairs, {texts} texts, {different} of them different from plain"
        " decoding."
    )


def headlines() -> str:
    """Headlines: figures of the runs in ``benchmarks/results`` at clean commits, for whole requests
    and decoding alone.
    """
    from draftwood_bench.report.headlines import peer_sentence, quality_sentence, speed_sentences

    sentences = [
        *(each for name in (STATED, "tinyllama") for each in told(name, speed_sentences, "auto")),
        *told("peers", lambda run: [peer_sentence(run, "auto")]),
        *told("quality", lambda run: [quality_sentence(run)]),
        (
            "**Nothing here has run on a GPU.** The CUDA path is tested on CPUs, except for"
            " recording its graphs."
        ),
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def without_a_second_model() -> str:
    """Sentences about the run of methods that need no second model."""
    from draftwood_bench.report.headlines import method_sentences

    return _list(told("methods", method_sentences))


def on_servers() -> str:
    """Sentences about the records of servers at clean commits."""
    from benchmarks.serving.show import sentences

    return _list(sentences(*_of_servers()[:2]))


def _list(sentences: Sequence[str]) -> str:
    lines = [f"- {sentence}" for sentence in sentences]
    return "\n".join(lines or ["(left out: no clean commit measured it)"])


def told(name: str, sentences: Callable[..., list[str]], *more: str) -> list[str]:
    """Sentences about a run in ``benchmarks/results``, none where no clean commit measured it."""
    run = measured(name)
    return [] if run is None else sentences(run, *more)


def table_of_methods() -> str:
    """Methods that a run in ``benchmarks/results`` measured at a clean commit, and the names of the
    others.
    """
    from draftwood_bench.report.methods_table import methods_table, unmeasured

    runs, stated = runs_of_methods()
    others = ", ".join(f"`{name}`" for name in unmeasured(runs))
    return (
        f"{methods_table(runs, stated).markdown()}\n\nWithout a record of a clean commit: {others}."
    )


def speeds_in_the_package() -> str:
    """Speeds that `draftwood methods` shows, from the same runs."""
    from draftwood.methods.measured import as_text
    from draftwood_bench.report.methods_table import measured_speeds

    return as_text(measured_speeds(*runs_of_methods()))


@cache
def runs_of_methods() -> "tuple[list[MeasuredRun], dict[str, MeasuredRun]]":
    """Every run in ``benchmarks/results`` that measured methods at a clean commit, and those that
    stand for a method by name.
    """
    from draftwood_bench.plan.protocols import PROTOCOLS
    from draftwood_bench.records.files import RUN

    found = [
        measured(path.parent.name) for path in sorted((BENCHMARKS / "results").glob(f"*/{RUN}"))
    ]
    runs = [each for each in found if each is not None and each.run.protocol in PROTOCOLS]
    stated = measured(STATED)
    return runs, {} if stated is None else {"auto": stated}


@cache
def measured(name: str) -> "MeasuredRun | None":
    """A run in ``benchmarks/results`` as far as its commits hold what was measured."""
    from draftwood_bench.records.files import RUN, read_clean
    from draftwood_bench.report.reading import MeasuredRun

    folder = BENCHMARKS / "results" / name
    if not (folder / RUN).is_file():
        return None
    run, records = read_clean(folder)
    return MeasuredRun(folder, run, records, {}) if records else None


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
    from benchmarks.training.drafters import TITLES, pairs, tables

    found = []
    for question, rows in tables():
        head = [name.replace("_", " ") for name in rows[0]]
        found += [f"**{TITLES[question]}**", markdown(head, [tuple(row.values()) for row in rows])]
    rows = pairs()
    table = markdown(list(rows[0]), [tuple(row.values()) for row in rows])
    found += ["**Beside each other**", table]
    for page in (growth, speed):
        rows = page.rows()
        table = markdown(list(rows[0]), [tuple(row.values()) for row in rows])
        found += [f"**{page.TITLE}**", table]
    return "\n\n".join(found)


def server_tables() -> str:
    """The server beside other servers, as far as clean commits measured it."""
    from benchmarks.common.json_lines import read
    from benchmarks.serving import neighbours
    from benchmarks.serving.show import shown, tables

    beside = [shown(table) for table in neighbours.tables(read(neighbours.RECORDS))]
    run, further, left_out = _of_servers()
    note = [f"(left out: {left_out} records without a clean commit)"] if left_out else []
    return "\n\n".join([tables(run, further), *note, *beside])


def _of_servers() -> tuple[list[dict], list[dict], int]:
    """Records of streams and of further figures at clean commits, and how many others there are."""
    from benchmarks.common.json_lines import read
    from draftwood_bench.records.files import is_clean

    folder = BENCHMARKS / "results" / "serving"
    found = [read(folder / name) for name in ("run.jsonl", "further.jsonl")]
    run, further = ([row for row in rows if is_clean(row.get("commit"))] for rows in found)
    return run, further, sum(map(len, found)) - len(run) - len(further)


def experiment_tables(name: str) -> str:
    """All tables of an experiment on self-speculation."""
    from benchmarks.self_speculation.experiments import tables

    found = []
    for title, rows in tables(name):
        table = markdown(list(rows[0]), [tuple(row.values()) for row in rows])
        found += [f"**{title}**", table]
    return "\n\n".join(found)


def proposers() -> str:
    """draftwood's proposers in vLLM beside vLLM's own, where a clean commit measured them."""
    from draftwood_bench.records.files import is_clean

    found = json.loads((BENCHMARKS / "results" / "vllm_proposer.json").read_text())
    if not is_clean(found["commit"]):
        return f"(left out: {len(found['arms'])} records without a clean commit)"
    head = (
        "proposer",
        "steps that drafted",
        "accepted",
        "drafted",
        "tokens per pass",
        "same texts",
    )
    keys = ("steps_that_drafted", "accepted_tokens", "draft_tokens", "tokens_per_pass")
    rows = [
        (each["arm"], *(f"{each[key]:g}" for key in keys), f"{each['same_texts']}")
        for each in found["arms"]
    ]
    return markdown(head, rows)


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
    "findings without a second model": without_a_second_model,
    "findings on servers": on_servers,
    "tables of drafters": drafter_tables,
    "tables of servers": server_tables,
    "table of overlap": overlap_table,
    "table of proposers": proposers,
    "tables of pruning": pruning_tables,
    **{f"tables of {name}": partial(experiment_tables, name) for name in EXPERIMENTS},
}


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    from draftwood.methods import measured as measured_file

    docs = ROOT / "docs"
    found = {
        docs / "methods.md": methods_page(),
        docs / "models.md": models_page(),
        docs / "transformers.md": transformers_page(),
        docs / "results.md": results_page(),
        Path(measured_file.__file__).with_name("measured.json"): speeds_in_the_package(),
    }
    names = ("findings.md", "self-speculation.md", "integrations.md")
    parts = (ROOT / "README.md", *(docs / name for name in names))
    return found | {path: filled(path) for path in parts} | method_listings()


def method_listings() -> dict[Path, str]:
    """Descriptions of methods, by package, which are read without importing the methods' parts."""
    import draftwood_methods
    from draftwood.methods import Listing, recipes

    found = {}
    for module in (recipes, draftwood_methods):
        rows = [json.dumps(Listing.of(recipe).as_json()) for recipe in module.RECIPES]
        text = "[\n" + ",\n".join(rows) + "\n]\n"
        found[Path(str(module.__file__)).with_name("listings.json")] = text
    return found


def _printed(command: list[str]) -> str:
    """Output of a draftwood command in the folder of the benchmarks."""
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
