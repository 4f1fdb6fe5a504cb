"""`draftwood report`: a page of what a run of tiny models left, and everything that may be
wrong."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from command import refused, run
from draftwood.optional import install_command
from draftwood_bench.run import describe

BENCH = (
    "bench",
    "spec-bench",
    "--methods",
    "lookup,recycling",
    "--dtype",
    "float32",
    "--max-new-tokens",
    "24",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture
def folder(target: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was measured, not made up; once for all tests."""
    output = place / "run"
    if not output.exists():
        monkeypatch.setattr(describe, "READ_BYTES", 1 << 20)
        lines = [
            {"id": str(n), "category": f"<{n % 2}>", "prompt": "abcabcabc" * (n + 1)}
            for n in range(4)
        ]
        (place / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        files = ("--prompts", str(place / "prompts.jsonl"), "--output", str(output))
        result = run(*BENCH, "--model", target, *files)
        assert result.exit_code == 0, result.output
    return output


class Balanced(HTMLParser):
    """Fails where an element is closed that is not the last one open."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


def test_a_page_and_tables(folder: Path, tmp_path: Path) -> None:
    page, tables = tmp_path / "new" / "report.html", tmp_path / "report.md"
    result = run("report", str(folder), "--output", str(page), "--markdown", str(tables), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"written": [str(page), str(tables)]}
    html = page.read_text()
    reader = Balanced()
    reader.feed(html)
    assert reader.open == []
    assert html.count("<svg") == 4  # by category, costs, depths, phases
    for part in (
        "&lt;0&gt;",
        "Draft trees",
        "decoding alone [95 %]",
        "speed-up, end to end [95 %]",
        "milliseconds per token",
        "4/4",
    ):
        assert part in html
    shown = tables.read_text()
    assert "| lookup |" in shown
    assert json.loads((folder / "run.json").read_text())["command"] in shown


def test_the_page_needs_no_network(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    run("report", str(folder), "--output", str(page))
    html = page.read_text()
    assert not re.search(r"<(link|img|iframe|script)[^>]*(src|href)=|@import|url\((?!#)", html)
    names = re.findall(r' id="([^"]+)"', html)
    assert len(names) == len(set(names))


def test_a_folder_counts_once_and_several_make_one_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    again = folder.parent / "again"
    again.mkdir(exist_ok=True)
    for name in ("run.json", "records.jsonl"):
        (again / name).write_bytes((folder / name).read_bytes())
    run("report", str(folder), str(folder), str(again), "--output", str(page))
    html = page.read_text()
    assert html.count("<section") == 2
    assert html.count("Draft trees") == 1


def test_a_run_of_plain_decoding_alone_has_a_page(folder: Path, tmp_path: Path) -> None:
    begun, page = tmp_path / "begun", tmp_path / "report.html"
    begun.mkdir()
    (begun / "run.json").write_bytes((folder / "run.json").read_bytes())
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    first = next(line for line in lines if json.loads(line)["method"] == "plain")
    (begun / "records.jsonl").write_text(first)
    assert run("report", str(begun), "--output", str(page)).exit_code == 0
    assert "only plain decoding of" in page.read_text()
    told = json.loads((begun / "run.json").read_text())
    (begun / "run.json").write_text(json.dumps({**told, "hardware": {}}))
    assert "its hardware has no device" in refused("bench", "show", str(begun))


def test_what_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    output = ("--output", str(tmp_path / "report.html"))
    assert "there is no folder" in refused("report", str(tmp_path / "nowhere"), *output)
    assert "draftwood bench" in refused("report", str(tmp_path), *output)
    assert "Missing argument" in refused("report", *output)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("[]")
    assert "run.json is no description" in refused("report", str(broken), *output)
    (broken / "run.json").write_bytes((folder / "run.json").read_bytes())
    assert "nothing to show" in refused("report", str(broken), *output)
    whole = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (broken / "records.jsonl").write_text("".join([whole[0], "{broken\n", *whole[1:]]))
    line = refused("report", str(broken), *output)
    assert "records.jsonl:2 is no record" in line
    assert "delete that line" in line
    for name in ("stats", "method"):
        damaged = json.dumps({**json.loads(whole[1]), name: None}) + "\n"
        (broken / "records.jsonl").write_text("".join([whole[0], damaged, *whole[2:]]))
        line = refused("report", str(broken), *output)
        assert f"records.jsonl:2 is no record of a benchmark: {name} cannot be None" in line
        assert line in refused("bench", "show", str(broken))
    told = json.loads((folder / "run.json").read_text())
    for name, value in (("prompts", None), ("peers", {"vllm": None}), ("resumed", [3])):
        (broken / "run.json").write_text(json.dumps({**told, name: value}))
        line = refused("report", str(broken), *output)
        assert f"run.json is no description of a benchmark run: {name} cannot be" in line
        assert "measure into a new folder" in line
    (broken / "run.json").write_text(json.dumps(told))
    (broken / "records.jsonl").write_text("".join(whole))
    (broken / "tree.json").write_text('{"auto": [{"step": 1}]}')
    assert "tree.json describes no draft trees" in refused("report", str(broken), *output)
    assert not (tmp_path / "report.html").exists()


def test_what_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused("report", str(folder), "--output", str(tmp_path / "file" / "report.html"))
    assert "cannot write" in line
    assert "choose another file" in line
    assert "is a directory" in refused("report", str(folder), "--output", str(tmp_path))


def test_no_page_takes_the_place_of_what_was_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    page = str(tmp_path / "page.html")
    monkeypatch.chdir(folder)
    for name in ("run.json", "records.jsonl", "records.jsonl.gz", "tree.json"):
        line = refused("report", str(folder), "--output", name)
        assert f"{name} holds what was measured; choose another file" in line
        line = refused("report", ".", "--output", page, "--markdown", str(folder / name))
        assert "choose another file" in line
    line = refused("report", ".", "--output", page, "--markdown", page)
    assert "cannot be both page and tables; give --markdown another file" in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not Path(page).exists()


def test_without_matplotlib(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refused("report", str(folder), "--output", str(tmp_path / "report.html"))
    assert install_command("draftwood-bench") in line
