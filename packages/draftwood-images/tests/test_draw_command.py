"""`draftwood draw`: what it writes and prints, and one line for what it cannot do."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from command import refused, run
from draftwood_images import drawing_options, sheet
from draftwood_images.small import write_small_model
from draftwood_images.starts import STARTS
from picture_records import stop_drawing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_model(tmp_path_factory.mktemp("pictures") / "small"))


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a picture's file."""
    from PIL import Image

    with Image.open(path) as picture:
        return picture.size


def test_a_sheet_is_written_and_told_of(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    done = run("draw", "red apple", "--model", folder, "--count", "4", "--output", str(path))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("raced-jacobi: 4 pictures, ")
    assert "tokens per pass, " in done.stdout
    assert "--output" not in done.stderr
    assert size_of(path) == ((2 * 7 + sheet.GAP) * 16, (2 * 6 + sheet.GAP) * 16)


def test_json_tells_all_methods_under_equal_seeds(folder: str) -> None:
    asked = ("--method", "plain,raced-jacobi,gsd", "--inexact", "--seed", "7", "--count", "2")
    done = run("draw", "red apple", "--model", folder, *asked, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["temperature"], told["top_k"], told["guidance"]) == (1.0, 5, 2.0)
    plain, raced, gsd = told["methods"]
    assert raced["same_as_plain"] == 2
    assert [each["seed"] for each in raced["pictures"]] == [7, 8]
    assert plain["passes"] == 2 * 41
    assert gsd["promise"] == "trades quality"
    assert np.shape(plain["pictures"][0]["codes"]) == (6, 7)


@pytest.mark.parametrize("has_colours", [True, False])
def test_pictures_are_shown_in_half_blocks_where_there_are_colours(
    folder: str, monkeypatch: pytest.MonkeyPatch, has_colours: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", "truecolor"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value) if has_colours else monkeypatch.delenv(name, raising=False)
    done = run("draw", "--model", folder, "--show", "--temperature", "0", "--guidance", "1")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("▀") == (3 * 7 if has_colours else 0)
    assert ("colours, which are off here; --output FILE.png" in done.stderr) != has_colours
    assert "1 picture, " in done.stdout


def test_a_picture_that_is_neither_kept_nor_shown_is_said_to_be(folder: str) -> None:
    done = run("draw", "--model", folder, "--guidance", "1")
    assert done.exit_code == 0, done.output
    assert "--output FILE.png keeps the pictures, --show shows them here" in done.stderr


def test_a_page_is_written(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = run("draw", "pear", "--model", folder, "--together", "2", "--report", str(path))
    assert done.exit_code == 0, done.output
    assert "data:image/png;base64," in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("red aple",), "did you mean apple"),
        (("red", "--method", "gsd"), "--inexact allows that"),
        (("red", "--method", "speculative"), "pictures have not"),
        (("red", "--method", "sdj"), "did you mean sjd"),
        (("red", "--window", "17"), "--window"),
        (("red", "--method", "plain", "--whole"), "--whole is for raced-jacobi or sjd or gsd, not"),
        (("red", "--method", "lookup", "--start", "row"), "not lookup; leave it out"),
        (("red", "--method", "plain,sjd", "--group", "7"), "--group is for gsd, not plain, sjd;"),
        (("red", "--distance", "2"), "--distance is for gsd, not raced-jacobi; leave it out"),
        (("red", "--show", "--json"), "leave one of both out"),
        (("red", "--output", "sheet.jpg"), "sheet.jpg would be a PNG file under another name; let"),
        (("red", "--model", "nothing-there"), "there is no model of pictures nothing-there"),
        (("red", "--model", ""), "there is no model of pictures ''; name its folder, or one of:"),
    ],
)
def test_bad_input_is_told_in_one_line(folder: str, arguments: tuple[str, ...], told: str) -> None:
    given = arguments if "--model" in arguments else (*arguments, "--model", folder)
    assert told in refused("draw", *given)


def test_a_picture_is_not_written_over_by_its_page(folder: str, tmp_path: Path) -> None:
    place = str(tmp_path / "sheet.png")
    told = refused("draw", "red", "--model", folder, "--output", place, "--report", place)
    assert "cannot be picture and page at once; give --report another file" in told
    assert not Path(place).exists()


def test_a_name_that_leaves_no_room_for_its_picture_is_refused(folder: str) -> None:
    told = refused("draw", " ".join(["red"] * 400), "--model", folder)
    assert "the name has 401 tokens and its picture" in told
    assert "in all; give a shorter name" in told


def test_a_model_of_texts_does_not_draw(target: str) -> None:
    told = refused("draw", "red", "--model", target)
    assert "draws no pictures" in told
    assert "draftwood generate" in told


def test_a_folder_that_is_no_model_is_told_to_be_none(tmp_path: Path) -> None:
    told = refused("draw", "red", "--model", str(tmp_path))
    assert "is a folder without picture.json, and no config.json tells a kind of model" in told
    assert "draftwood generate" not in told


def test_a_model_of_pictures_does_not_write(folder: str) -> None:
    assert "draftwood draw" in refused("generate", "red", "--model", folder)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the third picture is drawn."""
    stop_drawing(monkeypatch, 2)


@pytest.mark.usefixtures("stopped")
def test_finished_pictures_stay_after_ctrl_c(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    done = run("draw", "red", "--model", folder, "--count", "5", "--output", str(path))
    assert done.exit_code == 130
    assert done.stderr.strip() == "draftwood: stopped"
    assert size_of(path) == ((2 * 7 + sheet.GAP) * 16, 6 * 16)


def test_a_full_disk_leaves_nothing_half_written(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    path = tmp_path / "sheet.png"
    told = refused("draw", "red", "--model", folder, "--output", str(path))
    assert "the disk is full" in told
    assert "name another file" in told
    assert not list(tmp_path.iterdir())


def test_starts_of_the_option_are_all_there_are() -> None:
    assert drawing_options.START_NAMES == STARTS
