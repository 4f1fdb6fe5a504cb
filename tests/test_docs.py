"""Examples in the documents work, and generated pages are current."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile, groupby, pairwise
from pathlib import Path
from types import ModuleType

import click
import pytest

from benchmarks.pages import choices, runs, speed, summary
from checkout import ROOT
from draftwood.cli.main import main
from own_package import write


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
@pytest.mark.proof
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
    return script("generate")


def script(name: str) -> ModuleType:
    """A script of the folder of pages."""
    spec = importlib.util.spec_from_file_location(f"{name}_docs", ROOT / "docs" / f"{name}.py")
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


def test_a_run_that_is_not_there_yet_is_named_so() -> None:
    fields = generator().fields()
    assert fields["methods"]("absent") == runs.MISSING
    assert fields["whole"]("absent") == runs.MISSING
    assert "| `auto-shadow` |" in fields["methods"]("absent", "shadow")
    for table in (choices.two_writers, choices.games, choices.answers):
        assert table("absent") == runs.MISSING


def test_a_part_of_a_page_is_filled_and_the_rest_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, page = generator(), tmp_path / "page.md"
    begin = "<!-- one two, written by `make docs` -->\n"
    page.write_text(f"before\n{begin}old\n<!-- end -->\nafter\n<!-- end -->\n")
    monkeypatch.setattr(module, "fields", lambda: {"one": lambda what: f"new {what}"})
    assert module.filled(page) == f"before\n{begin}\nnew two\n\n<!-- end -->\nafter\n<!-- end -->\n"


RECORDS = "packages/draftwood-bench/benchmarks/results"


def documents() -> list[Path]:
    """The repository's pages, without what lies in ignored folders and beside records."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    command += ["*.md", f":(exclude){RECORDS}/*"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in told.splitlines() if (ROOT / name).is_file()]


def words(*paths: Path) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def test_documents_stay_readable() -> None:
    assert words(*documents()) <= 30_000
    assert words(ROOT / "README.md") <= 900
    assert words(ROOT / "CHANGELOG.md") <= 1_200


def test_words_are_counted_as_the_shell_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| a | b c |\n\nd\n")
    assert words(page, page) == 14


def test_links_between_documents_lead_somewhere() -> None:
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "packages").glob("*/*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not target.startswith(("http", "mailto")):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


PAGES = [
    *(ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))),
    *sorted((ROOT / "packages").glob("*/README.md")),
]
FILES = (".gguf", ".json", ".jsonl", ".txt")


def commands(page: str) -> list[list[str]]:
    """The commands in a page's blocks of bash, without settings before them."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", page, flags=re.S))
    told = re.sub(r"(?m)(^|\s+)# .*$", "", blocks.replace("\\\n", " "))
    found: list[list[str]] = []
    for line in re.findall(r"(?:'[^']*'|[^'\n])+", told):  # quotes may span lines
        words = shlex.split(line)
        for is_between, part in groupby(words, lambda word: word in ("|", "&&")):
            kept = list(dropwhile(lambda word: re.match(r"[A-Z_]+=", word), part))
            found += [kept] if kept and not is_between else []
    return found


def parse(words: Sequence[str]) -> None:
    """Read a command's options as the command line does, and run nothing."""
    context = click.Context(main)
    name, command, rest = main.resolve_command(context, list(words))
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
    assert command is not None
    command.make_context(name or "", rest)


def missing_files(page: str) -> list[str]:
    """Files that a command of a page reads though no command before has made them."""
    made: set[str] = set()
    missing = []
    for words in commands(page):
        written = {now for before, now in pairwise(words) if before in (">", "--output")}
        read = set(words[2:]) - written
        missing += [word for word in read if word.endswith(FILES) or word.startswith("runs/")]
        missing = [word for word in missing if word not in made]
        made |= written
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_can_be_given(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands(page.read_text()):
        if ">" in words and page.name == "README.md":
            subprocess.run(shlex.join(words).replace("'>'", ">"), shell=True, check=True)
        for file in words if page.name != "README.md" else ():
            if file.endswith(FILES):  # what the reader has
                Path(file).write_text("{}")
        if words[0] == "draftwood":
            parse(words[1:])


def test_an_option_that_is_not_there_is_found() -> None:
    """Negative control."""
    (words,) = commands("```bash\nCXX=none draftwood generate hello --metod auto  # no\n```")
    with pytest.raises(click.NoSuchOption):
        parse(words[1:])


def test_files_that_readme_names_are_made_there() -> None:
    text = (ROOT / "README.md").read_text()
    assert missing_files(text) == []
    assert missing_files(text.replace(" --output runs/first", "")) == ["runs/first"]
    asks = "```bash\ndraftwood generate hello --json-schema person.json\n```"
    assert missing_files(asks) == ["person.json"]  # negative controls


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_installs_from_the_clone_what_there_is(page: Path) -> None:
    """There is no release that an index could give."""
    text = page.read_text()
    assert not re.findall(r"pip install [^`\n-]*draftwood\b", text)
    for named, extras in re.findall(r"-e '?packages/([\w-]+)(?:\[([\w,]+)\])?", text):
        settings = (ROOT / "packages" / named / "pyproject.toml").read_text()
        listed = settings.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
        known = set(re.findall(r"^(\w+) = ", listed, flags=re.M))
        assert set(filter(None, extras.split(","))) <= known


def test_readme_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for name in re.findall(r"^make ([\w-]+)", (ROOT / "README.md").read_text(), flags=re.M):
        assert f"\n{name}:" in makefile


def test_pages_tell_figures_of_clean_commits_alone(tmp_path: Path) -> None:
    for commit, told in (("abc", True), ("abc-dirty", False), (None, False)):
        folder = tmp_path / str(commit)
        shutil.copytree(runs.RESULTS / "head", folder / "head")
        description = json.loads((folder / "head" / "run.json").read_text())
        (folder / "head" / "run.json").write_text(json.dumps({**description, "commit": commit}))
        assert ("`auto` answers whole requests" in summary.lines(folder)) == told
        assert ("| smollm2-135m, int8 + head |" in speed.front(folder)) == told
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert not [path.name for path in pages if re.search(r"[0-9a-f]{7,}-dirty", path.read_text())]


def test_the_front_takes_the_first_run_that_measured_a_model(tmp_path: Path) -> None:
    """Rows come and go with records: the head's run, then peers, and one row for GGUF."""
    for name in ("head", "gguf-gemma"):
        shutil.copytree(runs.RESULTS / name, tmp_path / "some" / name)
    rows = speed.front(tmp_path / "some").splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [
        *["| smollm2-135m, int8 + head"] * 2,
        "| gemma3-270m, GGUF",
    ]
    shutil.copytree(tmp_path / "some", tmp_path / "more")
    shutil.copytree(runs.RESULTS / "no-head", tmp_path / "more" / "peers")
    rows = speed.front(tmp_path / "more").splitlines()[2:]
    assert rows[2].startswith("| smollm2-135m, int8 | greedy (26) |")
    assert speed.front(tmp_path / "nowhere") == runs.MISSING


def test_a_head_that_is_no_longer_shipped_is_named_with_its_day() -> None:
    now = runs.measured("head")
    assert now is not None
    assert runs.head_of(now.run) == "smollm2-135m-eagle"
    before = replace(now.run, drafter_weights="0" * 64)
    assert runs.head_of(before) == f"smollm2-135m-eagle of {now.run.started[:10]}"
    assert runs.head_of(replace(now.run, drafter=None)) is None


def test_the_recorded_race_is_of_the_example_that_the_page_offers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    pictures = script("pictures")
    assert json.loads(pictures.RACE.read_text())["prompt"] == pictures.example()
    changed = tmp_path / "examples.js"
    changed.write_text(pictures.EXAMPLES.read_text().replace("Pile", "Heap"))
    monkeypatch.setattr(pictures, "EXAMPLES", changed)
    assert "class Stack to Heap" in pictures.example()
    changed.write_text("const CODE = `a`;")
    with pytest.raises(ValueError, match="has no example 'Edit code'"):
        pictures.example()
