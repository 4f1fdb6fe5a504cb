"""`draftwood bench pictures`: records that go on, figures that are paired, and its report."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import refused, run
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_images.layout import Places
from draftwood_images.maps import failing_by_place, given_by_place
from draftwood_images.measuring.names import names_for
from draftwood_images.measuring.report import report
from draftwood_images.measuring.run import HEIGHT, PLAIN, PROTOCOL, PictureRecord, shrunk
from draftwood_images.measuring.table import compared
from draftwood_images.small import WORDS, write_small_model
from picture_records import COLUMNS, GIVEN, ROWS, TOKENS, measured, record, stop_drawing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_model(tmp_path_factory.mktemp("pictures") / "small"))


def bench(model: str, folder: Path, *more: str) -> Any:
    names = () if "--names" in more else ("--names", "red apple, pear")
    asked = ("--model", model, *names, "--output", str(folder), "--threads", "1")
    return run("bench", "pictures", *asked, *more)


def read(folder: Path) -> list[PictureRecord]:
    return RecordFolder(folder, PROTOCOL, PictureRecord).read()


def test_methods_draw_the_same_names_and_seeds(model: str, tmp_path: Path) -> None:
    asked = ("--methods", "raced-jacobi,sjd,gsd", "--inexact", "--whole", "--seeds", "2")
    done = bench(model, tmp_path, *asked, "--seed", "3", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert list(told) == ["plain", "raced-jacobi", "sjd", "gsd"]
    assert {each["pictures"] for each in told.values()} == {4}
    assert told["raced-jacobi"]["same"] == 4
    assert told["sjd"]["same"] < 4
    assert told["gsd"]["promise"] == "trades quality"
    assert 1 == told["plain"]["tokens_per_pass"]["value"] < told["sjd"]["tokens_per_pass"]["value"]
    records = read(tmp_path)
    for point in told:
        drawn = [(each.name, each.seed) for each in records if each.point == point]
        assert drawn == [("red apple", 3), ("red apple", 4), ("pear", 5), ("pear", 6)]
    turns = list(dict.fromkeys((each.name, each.point) for each in records))
    assert [name for name, _ in turns] == ["red apple"] * 4 + ["pear"] * 4
    for each in records:
        assert sum(each.given) == each.tokens == len(each.codes)
        assert len(each.given) in (each.passes, each.passes + 1)  # the prompt's


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Ctrl-C while a name's second picture is drawn."""
    stop_drawing(monkeypatch, 1)
    return monkeypatch


def test_a_run_goes_on_where_it_was_stopped(
    model: str, tmp_path: Path, stopped: pytest.MonkeyPatch
) -> None:
    asked = ("--methods", "sjd", "--whole", "--seeds", "2", "--guidance", "1")
    assert bench(model, tmp_path / "one", *asked).exit_code == 130
    assert len(read(tmp_path / "one")) == 1
    stopped.undo()
    for folder in ("one", "other"):
        done = bench(model, tmp_path / folder, *asked)
        assert done.exit_code == 0, done.output
    one, other = read(tmp_path / "one"), read(tmp_path / "other")
    assert [(each.key, each.codes) for each in one] == [(each.key, each.codes) for each in other]
    assert len(one) == 8


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--methods", "gsd"), "--inexact allows that"),
        (("--names", "red aple"), "did you mean apple"),
        (("--names", " , "), "--names needs a name, for instance 'red apple,cat', got ' , '"),
        (("--methods", "sdj"), "did you mean sjd"),
        (("--window", "17"), "--window"),
        (("--methods", "sjd", "--group", "7"), "--group is for gsd, not sjd; leave it out"),
    ],
)
def test_bad_input_is_told_in_one_line(
    model: str, tmp_path: Path, more: tuple[str, ...], told: str
) -> None:
    asked = ("--model", model, "--output", str(tmp_path / "run"))
    assert told in refused("bench", "pictures", *asked, *more)
    assert not (tmp_path / "run").exists()


def test_other_settings_are_refused(model: str, tmp_path: Path) -> None:
    assert bench(model, tmp_path, "--methods", "plain", "--seeds", "1").exit_code == 0
    asked = ("--model", model, "--output", str(tmp_path), "--names", "red", "--methods", "plain")
    told = refused("bench", "pictures", *asked)
    assert "a run of other settings" in told
    assert 'names: ["red apple", "pear"] there, ["red"] here' in told
    assert "dtype" not in told


def test_a_run_goes_on_where_its_default_type_is_typed_out(model: str, tmp_path: Path) -> None:
    asked = (model, tmp_path, "--methods", "plain", "--seeds", "1")
    for dtype in ((), ("--dtype", "int8"), ()):
        done = bench(*asked, *dtype)
        assert done.exit_code == 0, done.output
    names = ("--model", model, "--output", str(tmp_path), "--names", "red apple, pear")
    told = refused("bench", "pictures", *names, "--methods", "plain", "--dtype", "float32")
    assert 'dtype: null there, "float32" here' in told


@pytest.mark.parametrize("command", ["compare", "generate", "bench spec-bench"])
def test_commands_of_texts_name_those_of_pictures(command: str, tmp_path: Path) -> None:
    asked = {
        "compare": ("cat", "--methods", "sjd"),
        "generate": ("cat",),
        "bench spec-bench": ("--methods", "lookup", "--output", str(tmp_path / "run")),
    }
    told = refused(*command.split(), *asked[command], "--model", "emoji")
    assert "'draftwood bench pictures' compares methods" in told


def test_names_are_those_of_characters_whose_words_are_known() -> None:
    assert names_for(WORDS, 3) == ["red apple", "green apple", "pear"]
    assert names_for(("one", "two"), 3) == ["one", "two"]
    with pytest.raises(ValueError, match="--names A,B,C"):
        names_for((), 3)


def test_figures_are_paired_name_by_name() -> None:
    """Names differ tenfold in time, and sjd takes half of plain drawing's on each."""
    records = [record("sjd", "unpaired", 9, 100.0)]
    for number, name in enumerate(("a", "b", "c")):
        for seed in (2 * number, 2 * number + 1):
            seconds = 10.0**number
            records.append(record("sjd", name, seed, seconds / 2, seed % 2))
            records.append(record(PLAIN, name, seed, seconds))
    found = compared(records)
    assert list(found) == [PLAIN, "sjd"]
    speed = found["sjd"].speed
    assert (speed.low, speed.value, speed.high) == (2.0, 2.0, 2.0)
    assert (found["sjd"].pictures, found["sjd"].same) == (6, 3)
    assert found["sjd"].tokens_per_pass.value == TOKENS / len(GIVEN["sjd"])
    assert found["sjd"].seconds == pytest.approx((0.5 + 5 + 50) / 3)
    with pytest.raises(ValueError, match="no picture of plain drawing yet"):
        compared(records[:1])


def test_neither_the_prompt_s_pass_nor_its_token_counts() -> None:
    each = replace(record(PLAIN, "a", 0), passes=TOKENS - 1)
    assert each.tokens_per_pass == 1
    drafted = record("sjd", "a", 0)
    assert replace(drafted, passes=drafted.passes - 1).tokens_per_pass == (TOKENS - 5) / 3


def test_maps_leave_the_ends_of_lines_out() -> None:
    places = Places(ROWS, COLUMNS, COLUMNS + 1)
    given = given_by_place(GIVEN["sjd"], places)
    assert given.tolist() == [[5, 5, 5, 5], [1, 4, 4, 4], [5, 5, 5, 5]]
    shares = failing_by_place([[0, 4], [0, 6]], places)
    assert shares.tolist() == [[1.0, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]]


def test_large_pictures_are_shrunk() -> None:
    pixels = np.zeros((2 * HEIGHT, 6, 3), np.uint8)
    pixels[::2] = 200
    assert shrunk(pixels).shape == (HEIGHT, 3, 3)
    assert set(shrunk(pixels).reshape(-1).tolist()) == {100}
    assert shrunk(pixels[:4]).shape == (4, 6, 3)


def test_a_page_shows_sheets_passes_and_failures(tmp_path: Path) -> None:
    page, tables = tmp_path / "report.html", tmp_path / "report.md"
    folder = str(measured(tmp_path / "run"))
    done = run("report", folder, "--output", str(page), "--markdown", str(tables))
    assert done.exit_code == 0, done.output
    html = page.read_text()
    assert "raced-jacobi: 7.50 tokens per pass, 2.00 times plain drawing" in html
    assert "4 of 4 pictures as drawn plainly" in html
    # 2 names x 3 methods x 2 seeds, 2 x 2 pairs of picture and map, 2 maps of failures
    assert html.count("<img ") == 12 + 8 + 2
    assert "2 passes, at most 8 tokens" in html
    assert "sjd: 8% of places" in html  # one of twelve, the other is a line's end
    assert "<cat>" not in html
    assert not re.search(r"<(link|img|iframe|script)[^>]*(src|href)=(?!\"data:)|@import", html)
    assert "| sjd | lossless | 4 | 3.75 [3.75, 3.75] |" in tables.read_text()
    assert "names <cat>, dog" in run("bench", "show", folder).stdout


def test_passes_are_shown_where_something_was_drafted(tmp_path: Path) -> None:
    (section,) = report([measured(tmp_path / "run")])
    sheets, passes, failing = section.galleries
    assert [(each.group, each.label) for each in sheets.drawings] == [
        ("<cat>", "seeds 0 to 1"),
        ("dog", "seeds 2 to 3"),
    ]
    assert {each.group for each in passes.drawings} == {"sjd", "raced-jacobi"}
    assert [each.label for each in passes.drawings][:2] == ["<cat>, seed 0", "dog, seed 2"]
    assert len(failing.drawings) == 1


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    folder = measured(tmp_path / "run")
    asked = ("report", str(folder), "--output", str(tmp_path / "report.html"))
    lines = (folder / "pictures.jsonl").read_text().splitlines(keepends=True)
    (folder / "pictures.jsonl").write_text("".join(lines[2:4]))
    assert "no picture of plain drawing yet" in refused(*asked)
    settings = folder / "pictures.json"
    settings.write_text(settings.read_text().replace("places", "other"))
    assert "where codes stand" in refused(*asked)
    assert not (tmp_path / "report.html").exists()
