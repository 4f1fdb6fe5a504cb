"""Imports point one way, files stay small, and importing the package costs nothing.

A room is a folder or a file of the core, ``packages/draftwood/src/draftwood``. The table below
lists the rooms from the ground up; a room imports itself and what stands in its row, nothing else.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from checkout import SOURCES

SOURCE = SOURCES["draftwood"] / "draftwood"
SATELLITES = {
    name.replace("-", "_"): folder / name.replace("-", "_")
    for name, folder in SOURCES.items()
    if name != "draftwood"
}

GROUND = {
    "arrays",
    "storage",
    "cluster",
    "limited",
    "together",
    "validation",
    "tree",
    "native",
    "rng",
    "rules",
    "sampling",
    "sampling_params",
    "stats",
    "version",
    "lazy",
    "optional",
    "tokenizer",
}
LOADING = GROUND | {"models", "loading"}
AXES = {"shapes", "verifiers", "sources", "drafters"}
TEXT = LOADING | {"heads", "costs", "engine", "methods", "grammar", "learning", "text"} | AXES
MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {"cli"},
    "version": set(),
    "optional": {"backend"},
    "backend": {"arrays", "models", "loading", "heads", "drafters", "methods", "engine"}
    | {"stats", "tokenizer"},  # types alone
    "arrays": set(),
    "storage": set(),
    "cluster": {"native", "optional"},
    "limited": set(),
    "together": set(),
    "validation": set(),
    "tokenizer": {"lazy", "optional", "storage"},
    "tree": {"arrays"},
    "native": {"arrays", "storage"},
    "rng": {"tree", "native", "arrays"},
    "rules": {"optional", "validation", "sampling_params"},  # the last for its types alone
    "sampling_params": {"validation", "rules", "engine"},
    "sampling": {"validation", "sampling_params", "arrays", "tree", "native", "rng"},
    "stats": {"tree"},
    "engine": GROUND | {"moved", "models", "shapes", "verifiers", "drafters"},
    "models": GROUND,
    "heads": GROUND | {"models"},
    "loading": GROUND | {"models"},
    "costs": GROUND | {"models", "shapes"},
    "shapes": GROUND | {"moved"},
    "verifiers": GROUND | {"moved"},
    "sources": GROUND | {"models", "heads", "costs"},
    "drafters": GROUND | {"backend", "moved", "models", "heads", "costs", "shapes", "sources"},
    "methods": GROUND | {"moved", "models", "heads", "costs", "engine"} | AXES,
    "grammar": GROUND | {"moved", "engine"},
    "learning": GROUND | {"models", "heads", "drafters"},
    "model_names": {
        "validation",
        "storage",
        "loading",
        "heads",
        "drafters",
        "methods",
        "model_set",
    },
    "model_set": (TEXT - {"text", "grammar", "learning"}) | {"model_names"},
    "text": (TEXT - {"text"}) | {"model_names", "model_set"},
    "testing": TEXT | {"backend"},
    "cli": TEXT | {"model_names", "model_set", "moved", "testing"},
    "moved": {"optional"},
    "lazy": {"moved"},
}
BENCH = {  # the rooms of the benchmark, likewise
    "plan": set[str](),
    "records": {"plan"},
    "peers": {"plan", "records"},
    "run": {"plan", "records", "peers"},
    "report": {"plan", "records"},
    "sizes": set(),
    "machine": {"sizes"},
    "planner": {"machine", "sizes"},
    "cli": {"plan", "records", "peers", "run", "report", "machine", "planner", "sizes"},
}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def all_files() -> list[Path]:
    return [*files(), *(path for folder in SATELLITES.values() for path in files_of(folder))]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def module_of(path: Path, source: Path = SOURCE) -> str:
    """The dotted name below the package, "" for the package itself."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, package: str = "draftwood") -> set[str]:
    """Modules of a package that a file imports anywhere, without the leading package name."""
    return _imported(ast.walk(ast.parse(path.read_text())), package)


def imports_on_load(path: Path, package: str = "draftwood") -> set[str]:
    """Modules that a file imports on load; imports for types alone do not count."""
    return _imported(ast.parse(path.read_text()).body, package)


def _imported(nodes: Iterable[ast.AST], package: str) -> set[str]:
    found = set()
    for node in nodes:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == package
        ):
            rest = node.module.removeprefix(package).lstrip(".")
            found |= {rest} if rest else {name.name for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                n.name.removeprefix(f"{package}.")
                for n in node.names
                if n.name.startswith(f"{package}.")
            }
    return found


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Names that import each other in a ring; empty where there is none."""
    done: set[str] = set()

    def walk(name: str, above: list[str]) -> list[str]:
        if name in above:
            return above[above.index(name) :]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := walk(other, [*above, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def graph_of_files(source: Path = SOURCE, package: str = "draftwood") -> dict[str, set[str]]:
    """Imports of each module on load; a name from a package counts as the package's own file."""
    modules = {module_of(path, source): path for path in sorted(source.rglob("*.py"))}
    return {
        name: (
            {m if m in modules else m.rpartition(".")[0] for m in imports_on_load(path, package)}
            - {name, ""}
        )
        for name, path in modules.items()
        if name
    }


def graph_of_folders(graph: Mapping[str, set[str]], depth: int = 1) -> dict[str, set[str]]:
    """The same by the leading parts of the names, files at the top being rooms of their own."""
    folders: dict[str, set[str]] = {}
    for name, others in graph.items():
        room = ".".join(name.split(".")[:depth])
        folders.setdefault(room, set()).update(
            ".".join(other.split(".")[:depth]) for other in others
        )
    return {room: others - {room} for room, others in folders.items()}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    room = module_of(path).partition(".")[0]
    if not room:
        return
    assert room in MAY_IMPORT, f"{room} is new: say in this test what it may import"
    for module in imports_of(path):
        other = module.partition(".")[0]
        assert other in MAY_IMPORT[room] | {room}, (
            f"{path.relative_to(SOURCE)} must not import draftwood.{module}"
        )


def test_every_room_of_the_table_exists() -> None:
    rooms = {module_of(path).split(".")[0] for path in files()} - {""}
    assert rooms == set(MAY_IMPORT)
    bench = SATELLITES["draftwood_bench"]
    assert {module_of(path, bench).split(".")[0] for path in files_of(bench)} - {""} == set(BENCH)


def test_rooms_of_the_benchmark_import_one_way() -> None:
    bench = SATELLITES["draftwood_bench"]
    for path in files_of(bench):
        room = module_of(path, bench).split(".")[0]
        others = {each.split(".")[0] for each in imports_of(path, "draftwood_bench")} - {"", room}
        assert others <= BENCH.get(room, set()), f"{path.relative_to(bench)} imports {others}"


WINGS = ("draftwood_choices", "draftwood_diffusion", "draftwood_images")
"""Packages of other aims than the model's own text: they may build on training and benchmarks."""
OF_WINGS = ("draftwood_train", "draftwood_bench")
BACKEND = "draftwood_torch"
"""The core's other half, which satellites may build on too where their ``pyproject.toml`` says so.
The core itself reaches it through ``draftwood.backend``, and imports it nowhere.
"""


def built_on(package: str) -> set[str]:
    """Packages besides the core that a satellite may import."""
    told = SOURCES.get(package.replace("_", "-"), SOURCE).parent / "pyproject.toml"
    may = (BACKEND, *OF_WINGS) if package in WINGS else (BACKEND,)
    needed = told.read_text() if package else ""
    return {package, *(each for each in may if f'"{each.replace("_", "-")}==' in needed)}


@pytest.mark.parametrize("path", all_files(), ids=lambda path: path.name)
def test_packages_import_the_core_and_themselves_alone(path: Path) -> None:
    own = next((name for name, folder in SATELLITES.items() if path.is_relative_to(folder)), "")
    strange = {name for name in SATELLITES if name not in built_on(own) and imports_of(path, name)}
    assert not strange, f"{path.name} imports {strange}; the core knows none, others the core alone"


def test_satellites_say_whether_they_need_pytorch() -> None:
    needing = {name for name in SATELLITES if name != BACKEND and BACKEND in built_on(name)}
    assert needing == {"draftwood_bench", "draftwood_methods", "draftwood_train"}
    assert built_on("") == {""}


@pytest.mark.parametrize("wing", WINGS)
def test_wings_import_public_names_alone(wing: str) -> None:
    for package in OF_WINGS:
        assert not [each for each in names_imported(SATELLITES[wing], package) if "._" in each]


def test_a_wing_may_import_what_it_says_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "pyproject.toml"
    monkeypatch.setitem(SOURCES, "draftwood-choices", tmp_path / "src")
    monkeypatch.setitem(SOURCES, "draftwood-serve", tmp_path / "src")
    told.write_text('dependencies = ["draftwood-train==1", "draftwood-serve==1"]')
    assert built_on("draftwood_choices") == {"draftwood_choices", "draftwood_train"}
    assert built_on("draftwood_serve") == {"draftwood_serve"}
    (tmp_path / "bad.py").write_text("from draftwood_train.loop import _step\n")
    assert names_imported(tmp_path, "draftwood_train") == {"draftwood_train.loop._step"}


def names_imported(folder: Path, package: str = "draftwood") -> set[str]:
    """Names of a package outside ``testing`` that the files of a folder import."""
    return {
        f"{node.module}.{each.name}"
        for path in files_of(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
        for each in node.names
        if not f"{node.module}.".startswith("draftwood.testing.")
    }


OTHERS = [folder for name, folder in SATELLITES.items() if name != BACKEND]
MOST_NAMES = {
    "of the core": (187, "draftwood", OTHERS),
    "of the backend": (102, "draftwood", [SATELLITES[BACKEND]]),
    "of PyTorch's package": (10, BACKEND, OTHERS),
}
"""Names that are imported at most, by kind: of which package, and by which folders. Those of the
core are counted outside ``testing``, those of the backend are the core's that it imports. A new
package may bring some, as the wings did (46 of them); else all may only shrink.
"""


@pytest.mark.parametrize("kind", MOST_NAMES)
def test_packages_build_on_few_names_of_others_all_of_them_public(kind: str) -> None:
    most, package, folders = MOST_NAMES[kind]
    found = {name for folder in folders for name in names_imported(folder, package)}
    assert not [name for name in found if "._" in name.replace("__version__", "version")]
    assert len(found) <= most, f"{len(found)} names {kind}: make fewer of them needed"
    assert len(found) == most, f"set the number {kind} to {len(found)}"


def test_a_planted_private_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from draftwood.tree import _hidden\nfrom draftwood.testing.laws import law\n"
    )
    assert names_imported(tmp_path) == {"draftwood.tree._hidden"}


def test_a_planted_import_of_a_satellite_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def late():\n    from draftwood_serve.run import run\n")
    assert imports_of(tmp_path / "bad.py", "draftwood_serve") == {"run"}


@pytest.mark.parametrize("package", ["draftwood", *SATELLITES])
def test_no_files_and_no_folders_import_each_other_in_a_ring(package: str) -> None:
    graph = graph_of_files(SATELLITES.get(package, SOURCE), package)
    assert not cycle(graph)
    assert not cycle(graph_of_folders(graph))


def test_a_planted_ring_is_found(tmp_path: Path) -> None:
    for folder, other in (("one", "two"), ("two", "three"), ("three", "one")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
        (tmp_path / folder / "part.py").write_text(
            f"from draftwood.{other}.part import something\n"
        )
    assert cycle(graph_of_files(tmp_path)) == ["one.part", "two.part", "three.part"]
    (tmp_path / "three" / "part.py").write_text("")
    (tmp_path / "three" / "rest.py").write_text("from draftwood.one.part import something\n")
    assert not cycle(graph_of_files(tmp_path))
    assert cycle(graph_of_folders(graph_of_files(tmp_path))) == ["one", "two", "three"]


def graph_with_types(room: str) -> dict[str, set[str]]:
    """Map each module of a room to its imports of it, those for types alone too."""
    modules = {module_of(path): path for path in files()}
    graph = {}
    for name, path in modules.items():
        if name.startswith(f"{room}."):
            found = {m if m in modules else m.rpartition(".")[0] for m in imports_of(path)}
            graph[name] = {each for each in found if each.startswith(f"{room}.")} - {name}
    return graph


def test_models_know_each_other_in_one_direction_even_by_their_types() -> None:
    graph = graph_with_types("models")
    assert {"models.native.model", "models.session"} <= set(graph)
    assert not cycle(graph)
    assert not cycle(graph_of_folders(graph, depth=2))
    back = {**graph, "models.native.step": {*graph["models.native.step"], "models.native.model"}}
    assert cycle(back) == ["models.native.model", "models.native.step"]


def test_a_layer_of_a_llama_in_pytorch_is_one_short_file() -> None:
    path = SATELLITES[BACKEND] / "lean" / "layer.py"
    assert len(path.read_text().splitlines()) <= 120


def files_without_a_part(folder: Path, protocol: str) -> list[str]:
    """Files of an axis that define no class with the methods that its protocol asks for."""
    methods = {"drafters": "start", "verifiers": "__call__", "shapes": "grow"}[protocol]
    found = []
    for path in sorted(folder.glob("*.py")):
        classes = [
            node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
        ]
        own = [{f.name for f in each.body if isinstance(f, ast.FunctionDef)} for each in classes]
        inherits = any(
            isinstance(base, ast.Name) and base.id in ("DraftModel", "LongestLiked")
            for each in classes
            for base in each.bases
        )
        if path.stem not in HELPERS and not any(methods in names for names in own) and not inherits:
            found.append(path.name)
    return found


PROTOCOLS = {"drafter", "ahead", "overlap", "resources", "shape", "verifier"}
# what the methods of an axis have in common
HELPERS = PROTOCOLS | {
    *("__init__", "base", "resting", "optimal", "best_tree", "rows"),
    *("draft_vocabulary", "head_drafts", "partial", "layer_sets", "window_starts"),
}


@pytest.mark.parametrize("axis", ["drafters", "shapes", "verifiers"])
def test_every_file_of_an_axis_holds_a_method(axis: str, tmp_path: Path) -> None:
    assert not files_without_a_part(SOURCE / axis, axis)
    assert not files_without_a_part(SATELLITES["draftwood_methods"] / axis, axis)
    (tmp_path / "helpers.py").write_text(
        "def helper() -> None: ...\n\n\nclass Table:\n    def read(self) -> None: ...\n"
    )
    assert files_without_a_part(tmp_path, axis) == ["helpers.py"]


# drafters that are made of other drafters
COMPOSED = {"merged", "multi_source", "per_level", "pruned"}


def test_methods_of_an_axis_do_not_know_each_other() -> None:
    shared = {
        *(
            "draft_model",
            "widths",
        ),  # layer_skip drafts like a draft model; independent chains are widths
        *(
            "multi_source",
            "optimal",
            "rows",
            "best_tree",
            "resting",
            "draft_vocabulary",
            "head_drafts",
            "partial",
            "layer_sets",
            "window_starts",
        ),
    }
    for axis in ("drafters", "shapes", "verifiers"):
        for package, source in (("draftwood", SOURCE), *SATELLITES.items()):
            for path in sorted((source / axis).glob("*.py")):
                if path.stem not in HELPERS | COMPOSED:
                    siblings = {
                        m.split(".")[1]
                        for m in imports_of(path, package)
                        if m.startswith(axis + ".")
                    } - {"base", *PROTOCOLS}
                    assert siblings <= shared, f"{path.name} imports {siblings}"


def files_with(text: str, source: Path) -> list[str]:
    """Files that hold this very string as a value."""
    return sorted(
        path.name
        for path in source.rglob("*.py")
        if any(
            isinstance(node, ast.Constant) and node.value == text
            for node in ast.walk(ast.parse(path.read_text()))
        )
    )


def test_only_who_declares_loads_and_refuses_knows_the_draft_model_by_name(tmp_path: Path) -> None:
    asking = {"methods.py", "promises.py", "tune.py"}  # which tell of methods, or try them
    known = {
        "draft_model.py",
        "drafts.py",
        "needs.py",
        "overlap.py",
        "resources.py",
    }
    assert set(files_with("draft-model", SOURCE)) == known | asking
    (tmp_path / "knowing.py").write_text('needs = drafter == "draft-model"\n')
    assert files_with("draft-model", tmp_path) == ["knowing.py"]


def test_the_engine_knows_models_and_parts_by_their_protocols_alone() -> None:
    protocols = {
        *("models.model", "models.requirements"),
        *("models.fingerprint", "models.verified"),
        *("drafters.drafter", "drafters.ahead", "drafters.overlap"),
        "drafters.nothing",  # the drafts of a text whose drafter is broken
        *("shapes.shape", "verifiers.verifier"),
    }
    rooms = {"models", "drafters", "shapes", "verifiers"}
    for path in files_of(SOURCE / "engine"):
        known = {each for each in imports_of(path) if each.split(".")[0] in rooms}
        assert known <= protocols, f"{path.name} imports {known - protocols}"


def asked_of_types(path: Path) -> list[int]:
    """Lines of a file that ask for the type of an object, or leave one open."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id in ("isinstance", "Any")
    ]


def test_nobody_in_the_engine_asks_for_types(tmp_path: Path) -> None:
    for path in files_of(SOURCE / "engine"):
        assert path.name == "options.py" or not asked_of_types(path), path.name
    (tmp_path / "asking.py").write_text("def f(x: Any) -> bool:\n    return isinstance(x, int)\n")
    assert asked_of_types(tmp_path / "asking.py") == [1, 2]


def importers_of(package: str, source: Path) -> dict[str, list[str]]:
    """Files that import a package, by folder."""
    found: dict[str, list[str]] = {}
    for path in files_of(source):
        names = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        if package in {name.split(".")[0] for name in names}:
            folder = path.parent.relative_to(source).as_posix()
            found.setdefault(folder, []).append(path.name)
    return found


ROOMS = {"torch": "", "transformers": "", BACKEND: "", "ctypes": "native"}
"""Packages that one room alone may import, or none."""


@pytest.mark.parametrize("package", ROOMS)
def test_packages_that_are_to_leave_are_imported_nowhere_anew(package: str) -> None:
    """The lists of ``importers.json``, files outside of a package's room, only shrink."""
    listed = json.loads(Path(__file__).with_name("importers.json").read_text())[package]
    room = ROOMS[package]
    found = {
        folder: files
        for folder, files in importers_of(package, SOURCE).items()
        if not room or (folder != room and not folder.startswith(f"{room}/"))
    }
    for folder in sorted({*listed, *found}):
        old, new = set(listed.get(folder, [])), set(found.get(folder, []))
        assert not new - old, f"{sorted(new - old)} of {folder} import {package} anew"
        assert not old - new, f"take {sorted(old - new)} of {folder} off the list of {package}"


def test_a_planted_importer_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def late():\n    from torch.nn import Module\n")
    (tmp_path / "two.py").write_text("import numpy, torchvision\n")
    assert importers_of("torch", tmp_path) == {".": ["one.py"]}


def test_the_import_rule_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from draftwood.engine import generate\nimport draftwood.cli.main\nfrom draftwood import"
        " methods\n"
    )
    assert imports_of(bad) == {"engine", "cli.main", "methods"}


def code_lines(path: Path) -> set[int]:
    """Lines of a file that hold code: neither blank, nor comments, nor docstrings."""
    text = path.read_text()
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    lines -= {n for n, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


@pytest.mark.parametrize("path", all_files(), ids=lambda path: path.name)
def test_files_and_functions_stay_small(path: Path) -> None:
    lines = code_lines(path)
    assert len(lines) <= 300, f"{path.name} is too long: a name is missing"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            code = len(lines & set(range(node.body[0].lineno, (node.end_lineno or 0) + 1)))
            assert code <= 50, f"{path.name}: {node.name} has {code} lines of code"


MOST_TO_LOAD = 294
"""Lines of code by which models are named, refused, loaded and made into methods."""


def test_what_loads_models_stays_small() -> None:
    files = ("model_set.py", "model_names.py", "drafters/resources.py", "methods/needs.py")
    lines = sum(len(code_lines(SOURCE / each)) for each in files)
    assert lines <= MOST_TO_LOAD, f"{lines} lines of code load models: simplify before you add"


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, draftwood; heavy = {'torch', 'transformers', 'draftwood_torch', 'fastapi',"
        " 'uvicorn', 'matplotlib', 'plotly', 'datasets', 'accelerate'};"
        " print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_using_the_library_loads_no_server_plot_or_training_package() -> None:
    """Nor does loading a model by name need Transformers' classes, which take seconds."""
    code = (
        "import sys, draftwood; draftwood.load; import draftwood.cli.main;"
        " slow = {'transformers.modeling_utils', 'torch._dynamo', 'scipy'} & set(sys.modules);"
        " draftwood.custom_generate; heavy = {'fastapi', 'uvicorn', 'starlette', 'matplotlib',"
        " 'llguidance', 'plotly', 'datasets', 'trl', 'peft'};"
        " print(sorted(slow | heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_of_tests_have_names_of_their_own() -> None:
    """Test folders are no packages: pytest imports one file of a name, and refuses the next."""
    folders = [Path(__file__).parent, *(source.parent / "tests" for source in SOURCES.values())]
    names = [path.name for folder in folders for path in folder.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
