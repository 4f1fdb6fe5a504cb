"""A package adds parts from outside: every command uses them, and draftwood is not edited."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import draftwood
from command import refused, run
from draftwood import methods, optional
from draftwood.drafters.drafter import DraftSession, Need
from draftwood.methods import Method, PartsWarning
from draftwood.testing import promises
from draftwood.testing.promises import tables
from draftwood.verifiers import Match
from draftwood_bench.records.files import read_records
from draftwood_bench.run import describe
from own_package import PAGE, install, plant, write

OWN = ["echo", "fan", "again"]
MODULES = ("mine", "planted")


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    """Remove what a test installed before the next one."""
    yield
    for name in MODULES:
        sys.modules.pop(name, None)
    forget()


def forget() -> None:
    """Look for packages anew."""
    optional.installed.cache_clear()
    methods.known_parts.cache_clear()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the page's package is installed."""
    folder = tmp_path_factory.mktemp("own")
    return install(write(folder / "package"), folder / "site")


def use(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the packages of a folder those that are installed."""
    monkeypatch.syspath_prepend(str(site))
    forget()


@pytest.fixture
def own(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(site, monkeypatch)


def test_the_page_names_all_methods_of_a_session_and_all_needs() -> None:
    before, heading, after = PAGE.read_text().partition("| in `needs` or `uses` |")
    assert heading
    session = before.partition("| of a session |")[2]
    told = re.findall(r"(?m)^\| `(\w+)[`(]", session)
    assert sorted(told) == sorted(name for name in vars(DraftSession) if name[0] != "_")
    assert sorted(re.findall(r"(?m)^\| `([\w-]+)` \|", after)) == sorted(get_args(Need))


@pytest.mark.usefixtures("own")
def test_every_part_is_found() -> None:
    parts = methods.known_parts()
    found = (parts.drafters, parts.shapes, parts.verifiers, parts.sources)
    names = [{name for name in axis if axis[name].__module__ == "mine"} for axis in found]
    assert names == [{"echo", "with-again"}, {"fan"}, {"first-level-only"}, {"again"}]
    assert list(parts.recipes)[-3:] == OWN


def test_a_process_of_its_own_lists_them(site: Path) -> None:
    code = "from draftwood.cli.main import main; main(['methods', '--json'])"
    where = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=where, timeout=120
    )
    assert done.returncode == 0, done.stderr
    described = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(described)[-3:] == OWN
    assert described["fan"] == {
        **{"name": "fan", "drafter": "layer-skip", "shape": "fan", "nodes": 4, "tree": None},
        **{"needs": [], "measured": [], "trees": []},
        **{"verifier": "first-level-only", "lossless": True, "promise": "lossless"},
        "needs_draft_model": False,
        "needs_drafter": False,
        "summary": "one level of draft tokens",
        "source": "this page",
    }


@pytest.mark.usefixtures("own")
def test_methods_generate_and_compare_use_them(target: str) -> None:
    assert all(name in run("methods").stdout for name in OWN)
    model = ("--model", target, "--dtype", "float32", "--max-new-tokens", "12", "--json")
    for name in OWN:
        made = json.loads(run("generate", "hello hello", "--method", name, *model).stdout)
        assert made["method"] == name
        assert made["stats"]["drafted"] > 0
    compared = run("compare", "hello hello", "--methods", ",".join(OWN), *model)
    assert compared.exit_code == 0, compared.output
    results = json.loads(compared.stdout)["results"]
    assert list(results) == ["plain", *OWN]
    assert all(result["identical_to_plain"] for result in results.values())


@pytest.mark.usefixtures("own")
def test_check_proves_them(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "TEXTS", 3)
    monkeypatch.setattr(promises, "check_controls", lambda: iter(()))
    chosen = ("--methods", ",".join(OWN), "--model", target, "--max-new-tokens", "8", "--json")
    result = run("check", *chosen)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["findings"]
    assert [(each["check"], each["name"]) for each in found if each["check"] != "control"] == [
        *(("rule", name) for name in ("match", "first-level-only")),
        *(("law", name) for name in OWN),
        *(("identity", name) for name in OWN),
        ("drafts", "fan"),
    ]
    assert all(each["passed"] for each in found)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("method", "axis", "labels"),
    [
        ("lookup", "drafter", {"lookup, drafter echo", "lookup, drafter with-again"}),
        ("layer-skip", "verifier", {"layer-skip + first-level-only"}),
        ("layer-skip", "shape", {"Fan(budget=6)"}),
    ],
)
def test_bench_axes_varies_them(
    method: str,
    axis: str,
    labels: set[str],
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(describe, "READ_BYTES", 1 << 20)
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text(json.dumps({"id": "a", "category": "first", "prompt": "hello"}) + "\n")
    chosen = ("--methods", method, "--vary", axis, "--budget", "6", "--temperature", "0")
    model = ("--model", target, "--dtype", "float32", "--max-new-tokens", "4")
    where = ("--prompts", str(prompts), "--output", str(output))
    result = run("bench", "axes", *chosen, *model, *where)
    assert result.exit_code == 0, result.output
    records = read_records(output)
    assert labels <= {record.method for record in records} | {record.shape for record in records}
    assert all(record.identical_to_plain for record in records)


@pytest.mark.usefixtures("own")
def test_python_takes_recipes_and_methods(target: str) -> None:
    import mine

    lm = draftwood.load(target, dtype="float32", method="plain")
    wanted = lm.generate("hello hello", max_new_tokens=8).token_ids
    for method in (mine.RECIPES[0], mine.RECIPES[1], Method(mine.Echo(2), Match(), "two")):
        made = lm.with_method(method).generate("hello hello", max_new_tokens=8)
        assert (made.method, made.token_ids) == (method.name, wanted)
    assert draftwood.load(target, method=mine.RECIPES[2]).method.name == "again"


def test_without_the_package_there_is_nothing_of_it() -> None:
    assert not set(OWN) & set(methods.known())
    assert "there is no method 'echo'" in refused("generate", "hello", "--method", "echo")


BROKEN = {
    "raising": ("planted", "raise RuntimeError('half written')", "RuntimeError: half written"),
    "leaving": ("planted", "raise SystemExit('not here')", "SystemExit: not here"),
    "missing": ("planted", "import no_such_package", "No module named 'no_such_package'"),
    "no module": ("planted:RECIPES", "RECIPES = ()", "names a module, without a colon"),
    "no recipes": ("planted", "RECIPES = ('echo',)", "RECIPES holds recipes, not 'echo'"),
    "no shape": (
        "planted",
        "from draftwood import methods\nfrom dataclasses import replace\n"
        "RECIPES = (replace(methods.recipe('rsd-s'), name='mad', shape=object()),)",
        "'object' object has no attribute 'draw'",
    ),
}


@pytest.mark.usefixtures("own", "unchecked")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_warns_once_and_spoils_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, text, reason = BROKEN[kind]
    plant(tmp_path, "broken", module, text)
    use(tmp_path, monkeypatch)
    with pytest.warns(PartsWarning, match="the parts of broken are left out") as told:
        assert list(methods.known())[-3:] == OWN
    assert len(told) == 1
    assert reason in str(told[0].message)
    assert "echo" in run("methods").stdout  # a second warning would be an error


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("verifier", "class Mine:\n    name, exact_for = 'first-level-only', frozenset()\n"),
        ("shape", "class Mine:\n    name, grow = 'fan', None\n"),
        ("source", "class Mine:\n    name, start = 'again', None\n"),
        ("drafter", "from draftwood.drafters import Nothing\nclass M(Nothing):\n    name='echo'\n"),
        (
            "method",
            "from draftwood.methods.recipes import RECIPES\nfrom dataclasses import replace\n"
            "RECIPES = (replace(RECIPES[1], name='fan'),)",
        ),
    ],
)
def test_equal_names_are_refused(
    kind: str, text: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = plant(tmp_path, "other", "planted", text)
    use(tmp_path, monkeypatch)
    line = refused("methods")
    assert f"two {kind}s have the name" in line
    assert str(file) in line
    assert str(site / "mine.py") in line


def test_a_name_of_draftwoods_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "class Mine:\n    name, exact_for = 'match', frozenset()\n"
    file = plant(tmp_path, "other", "planted", text)
    use(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="two verifiers have the name 'match'") as caught:
        methods.build("plain", tables()[0])
    assert str(file) in str(caught.value)
    assert "verifiers/match.py" in str(caught.value)


def test_the_page_names_what_it_holds() -> None:
    page = PAGE.read_text()
    assert page.count("```") == 2 * (page.count("```toml") + page.count("```python"))
