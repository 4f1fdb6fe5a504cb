"""A datastore from files to faster texts, and all that may be wrong with one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import draftwood
from command import refused, run

LINE = "the quick brown fox jumps over the lazy dog; "


@pytest.fixture(scope="module")
def store(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that the target writes after their beginning, among others."""
    folder = tmp_path_factory.mktemp("datastore")
    written = draftwood.load(target, method="plain", dtype="float32").generate(
        LINE, max_new_tokens=60, raw=True
    )
    (folder / "one.txt").write_text(LINE + written.text, encoding="utf-8")
    # a mark of byte order is no part of a text
    (folder / "two.txt").write_text("something else\n" * 9, encoding="utf-8-sig")
    path = folder / "texts.store"
    files = [str(folder / name) for name in ("one.txt", "two.txt")]
    result = run("datastore", "build", *files, "--output", str(path), "--model", target, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.pop("seconds") > 0
    shown = run("datastore", "show", str(path), "--json")
    assert json.loads(shown.stdout) == told
    assert told["texts"] == 2
    assert told["tokens"] == told["characters"] == len(LINE + written.text) + 15 * 9
    assert told["bytes"] == path.stat().st_size < 9 * told["tokens"] + 2000
    return path


def made(target: str, *options: str) -> dict:
    common = ("--model", target, "--dtype", "float32", "--max-new-tokens", "60", "--raw", "--json")
    result = run("generate", LINE, *common, *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize("method", ["suffix", "auto"])
def test_a_datastore_changes_runs_and_no_texts(
    target: str, store: Path, method: str, temperature: str
) -> None:
    options = ("--method", method, "--temperature", temperature, "--seed", "3")
    without = made(target, *options)
    with_texts = made(target, *options, "--datastore", str(store))
    assert with_texts["text"] == without["text"]
    if temperature == "0":
        assert with_texts["stats"]["target_runs"] < without["stats"]["target_runs"]
        assert with_texts["stats"]["sources"]["datastore"]["accepted"] > 0
        assert "datastore" not in without["stats"]["sources"]


def test_what_a_store_holds_is_told(store: Path, target: str) -> None:
    shown = run("datastore", "show", str(store))
    assert shown.exit_code == 0
    assert f"tokens of 2 texts for {target}" in shown.stdout


def test_one_text_is_told_as_one(target: str, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(LINE)
    files = (str(tmp_path / "one.txt"), "--output", str(tmp_path / "one.store"))
    assert " of 1 text for " in run("datastore", "build", *files, "--model", target).stdout


def test_a_conversation_copies_from_it(target: str, store: Path) -> None:
    said = run(
        *("chat", "--model", target, "--max-new-tokens", "8", "--datastore", str(store)),
        given="hello\n",
    )
    assert said.exit_code == 0, said.output
    plain = run(
        "chat", "--model", target, "--max-new-tokens", "8", "--method", "plain", given="hello\n"
    )
    assert said.stdout == plain.stdout
    assert "does without" not in said.stderr
    chosen = ("--method", "lookup", "--datastore", str(store), "--overlap")
    idle = run("chat", "--model", target, "--max-new-tokens", "8", *chosen, given="hello\n")
    assert idle.stdout == plain.stdout
    assert "lookup does without --datastore, --overlap; a /method may use it" in idle.stderr


def test_methods_that_copy_from_none_refuse_it(target: str, store: Path) -> None:
    options = ("--model", target, "--datastore", str(store))
    line = refused("generate", "hello", *options, "--method", "lookup")
    assert "method 'lookup' uses no datastore; leave it out, or choose" in line


def test_a_store_of_another_tokenizer(stranger: str, store: Path) -> None:
    line = refused("generate", "hello", "--model", stranger, "--datastore", str(store))
    assert "holds tokens of another tokenizer" in line
    assert "build one with 'draftwood datastore build'" in line


def test_stores_that_are_not_whole(target: str, store: Path, tmp_path: Path) -> None:
    whole = store.read_bytes()
    for content, what in (
        (whole[:-1], "was cut short; build it again with 'draftwood datastore build'"),
        (whole[:-1] + b"?", "was changed since it was built; build it again"),
        (b"text", "is no datastore of draftwood"),
    ):
        path = tmp_path / "broken"
        path.write_bytes(content)
        assert what in refused("datastore", "show", str(path))
        assert what in refused("generate", "hello", "--model", target, "--datastore", str(path))
    assert "there is no datastore" in refused("datastore", "show", str(tmp_path / "nowhere"))


def test_files_that_cannot_be_sorted(target: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "text").write_text("words")
    output = ("--output", str(tmp_path / "made.store"), "--model", target)
    for name, what in (
        ("empty", "hold no tokens"),
        ("bytes", "is not UTF-8 text; leave it out"),
        ("nowhere", "there is no file"),
        ("", "is a folder; name its files"),
    ):
        assert what in refused("datastore", "build", str(tmp_path / name), *output)
    other = ("--output", str(tmp_path / "text"), "--model", target)
    line = refused("datastore", "build", str(tmp_path / "text"), *other)
    assert "holds something else than a datastore; choose another --output" in line
    assert (tmp_path / "text").read_text() == "words"
    made = ("--output", str(tmp_path / "own.store"), "--model", target)
    assert run("datastore", "build", str(tmp_path / "text"), *made).exit_code == 0
    plain = tmp_path / "plain"
    plain.write_text("")
    assert (tmp_path / "own.store").stat().st_mode == plain.stat().st_mode
    assert not (tmp_path / "made.store").exists()


KILLED = """
import os, signal, sys
from draftwood.cli.main import main
from draftwood.sources import stored_index

def half(path, arrays, metadata):
    path.write_bytes(b"half a datastore")
    os.kill(os.getpid(), signal.SIGKILL)

stored_index.write_arrays = half
main(sys.argv[1:])
"""


@pytest.mark.proof
def test_a_build_that_is_killed_leaves_what_was_there(
    target: str, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "texts.store"
    path.write_bytes(store.read_bytes())
    text = tmp_path / "text"
    text.write_text("other words")
    command = ("datastore", "build", str(text), "--output", str(path), "--model", target)
    done = subprocess.run([sys.executable, "-c", KILLED, *command], env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == store.read_bytes()
    (left,) = tmp_path.glob(".texts.store.*")
    os.utime(left, (0, 0))  # what is new may be another machine's
    assert run(*command).exit_code == 0  # which removes what the other left
    assert sorted(each.name for each in tmp_path.iterdir()) == ["text", "texts.store"]
