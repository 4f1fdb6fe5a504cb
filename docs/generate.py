"""Write the generated pages and parts of pages, and the speeds that the package tells.

A test checks that they are current.

python docs/generate.py            # or: make docs
python docs/generate.py --check    # exit code 1 where a page is out of date
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "packages" / "draftwood-bench" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS.parent))  # scripts whose tables are shown

END = "<!-- end -->\n"
PART = re.compile(rf"<!-- ([\w -]+), written by `make docs` -->\n.*?{END}", re.S)
FILLED = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("choices", "diffusion", "integrations", "self-speculation", "training")
    ),
)


def methods_page() -> str:
    """Fill the frame in ``methods.md.in`` with every method, its parts and its source."""
    from draftwood.methods import known

    rows = [
        (
            f"`{recipe.name}`",
            recipe.summary if recipe.lossless else f"{recipe.summary} (**{recipe.promise}**)",
            "" if recipe.drafter.name == recipe.name else recipe.drafter.name,
            f"{recipe.shape.label}: {recipe.shape.nodes}" if recipe.shape else "",
            recipe.verifier.name,
            recipe.source,
        )
        for recipe in known().values()
    ]
    head = ("method", "what it does", "drafter", "shape: nodes", "verifier", "source")
    frame = (ROOT / "docs" / "methods.md.in").read_text().replace("{{ trees }}", trees_by_form())
    return frame.replace("{{ methods }}", markdown(head, rows))


def trees_by_form() -> str:
    """Forms of trees that users choose, and the methods that draw them."""
    from draftwood.methods import listings
    from draftwood.methods.trees import EXAMPLES

    rows = []
    for form, example in EXAMPLES.items():
        text, _, meaning = example.partition(" (")
        names = [f"`{name}`" for name, each in listings().items() if form in each.trees]
        if len(names) > 6:
            names = [f"{len(names)} methods; `draftwood methods --json` names them"]
        written = " or ".join(f"`{each}`" for each in text.split(" or "))
        rows.append((written, meaning.removesuffix(")"), ", ".join(names)))
    return markdown(("`--tree`", "tree", "methods"), rows)


OTHER_KINDS = {"llama": ["mixtral"], "olmo2": ["olmo3"], "granitemoe": ["granitemoeshared"]}
"""Types of models whose GGUF files are of another one's architecture, by its name."""


def models_page() -> str:
    """The frame in ``models.md.in`` with the families that have code of their own, and others that
    the tests run.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    from draftwood.loading.gguf_settings import ARCHITECTURES
    from draftwood.models.families import FAMILIES
    from draftwood_torch.recurrences.known import RECURRENCES
    from families import FAMILIES as TESTED
    from hybrids import HYBRIDS

    classes = {**MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    files: dict[str, list[str]] = {}
    for name, known in ARCHITECTURES.items():
        for kind in (known.model_type, *OTHER_KINDS.get(name, ())):
            files.setdefault(classes[kind], []).append(f"`{name}`")
    readers = {family.title: name for name, family in FAMILIES.items()}
    own = [
        (
            family.title,
            f"`{name}`" + _of_images(readers, family.title),
            ", ".join(files.get(name, ())),
        )
        for name, family in FAMILIES.items()
        if not family.title.endswith(IMAGES)
    ]
    tested = {classes[getattr(transformers, config).model_type] for config, _ in TESTED.values()}
    others = ", ".join(
        f"`{name}`" + (f" (GGUF {', '.join(files[name])})" if name in files else "")
        for name in sorted((tested | set(files)) - set(FAMILIES))
    )
    kinds = {
        config.removesuffix("Config").removesuffix("Text"): getattr(transformers, config).model_type
        for config in sorted({config for config, _ in HYBRIDS.values()})
    }
    hybrids = [
        (f"`{classes[model_type]}`", f"`{layer}`", RECURRENCES[layer].title)
        for name, model_type in kinds.items()
        for layer in RECURRENCES
        if classes[model_type] not in FAMILIES
        and name == max((each for each in kinds if layer.startswith(each)), key=len)
    ]
    frame = (ROOT / "docs" / "models.md.in").read_text().replace("{{ others }}", others)
    for name, head, rows in (
        ("hybrids", ("class in Transformers", "layer", "recurrence"), hybrids),
        ("own", ("family", "class in Transformers", "GGUF"), own),
    ):
        frame = frame.replace("{{ " + name + " }}", markdown(head, rows))
    return frame


IMAGES = " with images (text alone)"


def _of_images(readers: dict[str, str], title: str) -> str:
    """Name the class that reads images too, where a family has one."""
    name = readers.get(title + IMAGES)
    return "" if name is None else f", `{name}`"


def transformers_page() -> str:
    """The frame in ``transformers.md.in`` and Transformers' options by outcome."""
    from draftwood_torch.hook.options import ARGUMENTS, OPTIONS

    frame = (ROOT / "docs" / "transformers.md.in").read_text()
    for name, table in (("arguments", ARGUMENTS), ("options", OPTIONS)):
        groups: dict[tuple[str, str], list[str]] = {}
        for option, said in table.items():
            groups.setdefault((said.outcome, said.remark), []).append(f"`{option}`")
        rows = [(outcome, ", ".join(names), remark) for (outcome, remark), names in groups.items()]
        text = markdown(("here", name, "remark"), sorted(rows, key=lambda row: ORDER.index(row[0])))
        frame = frame.replace("{{ " + name + " }}", text)
    return frame


ORDER = ("right", "without drafts", "refused", "not for this")


def results_page() -> str:
    """Fill the frame in ``results.md.in``: each ``{{ part argument ... }}`` with what it gives."""
    before, *parts = (ROOT / "docs" / "results.md.in").read_text().split("{{")
    page = [before]
    for part in parts:
        words, rest = part.split("}}", 1)
        name, *arguments = words.split()
        page += [fields()[name](*arguments).strip(), rest]
    return "".join(page)


@cache
def fields() -> dict[str, Callable[..., str]]:
    """Parts of pages, from records at clean commits."""
    from benchmarks.pages import (
        choices,
        diffusion,
        experiments,
        measurements,
        servers,
        speed,
        summary,
        trees,
    )

    return {
        "summary": summary.lines,
        "speeds": speed.front,
        "methods": speed.methods,
        "memory-bound": trees.memory_bound,
        "over-chains": trees.trees_over_chains,
        "in-seconds": trees.in_seconds,
        "scores": trees.scores,
        "asked": trees.asked,
        "claims": trees.claims,
        "same-file": measurements.same_file,
        "starts": measurements.starts,
        "cost": measurements.cost,
        "whole": measurements.whole,
        "overhead": measurements.overhead,
        "with-heads": measurements.with_heads,
        "servers": servers.beside_other_servers,
        "load": servers.under_load,
        "server-findings": servers.said,
        "proposers": servers.proposers,
        "drafters": experiments.of_drafters,
        "experiment": experiments.of_experiment,
        "choice": choices.of_choice,
        "unmasking": diffusion.of_rules,
    }


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from draftwood_bench.report.table import Table

    return Table("", tuple(head), tuple(tuple(row) for row in rows)).markdown()


def speeds_in_the_package() -> str:
    """Speeds that `draftwood methods` shows."""
    from benchmarks.pages.runs import of_methods
    from draftwood.methods.measured import as_text
    from draftwood_bench.report.method_speeds import measured_speeds

    return as_text(measured_speeds(*of_methods()))


def filled(path: Path) -> str:
    """A page, the parts between ``BEGIN`` and ``END`` as they should be."""

    def part(found: re.Match[str]) -> str:
        name, *arguments = found[1].split()
        return f"{found[0].partition(chr(10))[0]}\n\n{fields()[name](*arguments)}\n\n{END}"

    return PART.sub(part, path.read_text())


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
    parts = {ROOT / name: filled(ROOT / name) for name in FILLED}
    return found | parts | method_listings()


def method_listings() -> dict[Path, str]:
    """Listings of methods by package, for those who do without their parts."""
    import draftwood_methods
    from draftwood import methods
    from draftwood.methods.recipes import own_recipes

    found = {}
    for package, recipes in (
        (methods, own_recipes()),
        (draftwood_methods, draftwood_methods.RECIPES),
    ):
        rows = [json.dumps(methods.Listing.of(recipe).as_json()) for recipe in recipes]
        text = "[\n" + ",\n".join(rows) + "\n]\n"
        found[Path(str(package.__file__)).with_name("listings.json")] = text
    return found


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
