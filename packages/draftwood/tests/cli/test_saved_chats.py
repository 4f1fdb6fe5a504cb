"""Chats are saved when asked, whole, and go on with the model that began them."""

import json
import os
from pathlib import Path

import pytest

from command import refused, run
from draftwood.cli import chats
from draftwood.cli.chats import SavedChat
from draftwood.native import library
from draftwood.storage.home import absolute


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library.available()  # compiled in the usual home
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "chats"


def talk(target: str, given: str, *options: str):
    made = run("chat", "--model", target, "--max-new-tokens", "8", *options, given=given)
    assert made.exit_code == 0, made.output
    return made


def test_nothing_is_saved_unless_asked(target: str, home: Path) -> None:
    talk(target, "hello\n")
    assert not home.exists()


def test_a_chat_goes_on_as_if_it_had_never_ended(target: str, home: Path) -> None:
    told = ("--system", "abc")
    whole = talk(target, "hello\nworld\n", *told).stdout
    first = talk(target, "hello\n", *told, "--save", "fox").stdout
    second = talk(target, "world\n", "--resume", "fox").stdout
    assert first + second == whole
    saved = json.loads((home / "fox.json").read_text())
    assert saved["form"] == 1
    assert saved["system"] == "abc"
    assert [each["content"] for each in saved["messages"][::2]] == ["hello", "world"]
    assert (home / "fox.json").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in home.iterdir()] == ["fox.json"]


def test_without_a_name_the_newest_goes_on(target: str, home: Path) -> None:
    talk(target, "hello\n", "--save", "old")
    talk(target, "world\n", "--save", "new")
    os.utime(home / "old.json", (1, 1))
    talk(target, "again\n", "--resume")
    assert len(json.loads((home / "new.json").read_text())["messages"]) == 4
    assert len(json.loads((home / "old.json").read_text())["messages"]) == 2


def test_a_chat_can_branch(target: str, home: Path) -> None:
    talk(target, "hello\n", "--save", "one")
    talk(target, "world\n", "--resume", "one", "--save", "two")
    lengths = [len(chats.read(name)[1].messages) for name in ("one", "two")]
    assert lengths == [2, 4]


def test_save_and_clear_as_commands(target: str, home: Path) -> None:
    given = "/save\nhello\n/save fox\nworld\n/save\n/clear\nnever\n/save fox\n/save a/b\n"
    said = talk(target, given).stderr
    assert "a chat is saved under a name; /save NAME" in said
    assert "the conversation is forgotten; fox stays, /save NAME saves a new one" in said
    assert f"saved in {home / 'fox.json'}, and after each answer" in said
    assert "there is a chat 'fox' already; --resume fox goes on" in said
    assert "a chat's name has up to 80 letters" in said
    assert [each["content"] for each in chats.read("fox")[1].messages[::2]] == ["hello", "world"]


def test_a_chat_that_cannot_be_resumed(target: str, draft: str, home: Path) -> None:
    assert "no chat is saved yet" in refused("chat", "--resume")
    assert "none is saved yet, and --save fox begins it" in refused("chat", "--resume", "fox")
    talk(target, "hello\n", "--save", "fox")
    other = refused("chat", "--resume", "fox", "--model", draft)
    assert other.endswith(
        f"chat 'fox' was held with {target}, not with {draft}; go on with --model {target}"
    )
    assert "there are fox, and --save dog" in refused("chat", "--resume", "dog")
    assert "--resume fox goes on with it" in refused("chat", "--save", "fox")
    for name in ("", "../fox", ".fox", "a b", "x" * 81):
        assert "a chat's name has" in refused("chat", "--save", name)
        assert "a chat's name has" in refused("chat", f"--resume={name}") or name == ""


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"form": 2, "model": "smollm2-135m"}',
        '{"form": 1}',
        '{"form": 1, "model": 3}',
        '{"form": 1, "model": "a", "messages": [{"role": "user", "content": "hi"}]}',
        '{"form": 1, "model": "a", "messages": [1, 2]}',
        '{"form": 1, "model": "a", "more": 1}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_one_line(home: Path, content: str | bytes) -> None:
    home.mkdir(parents=True)
    file = home / "fox.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused("chat", "--resume", "fox")
    assert f"{file} is damaged (" in said
    assert said.endswith("mend or remove it")


def test_what_another_process_said_is_not_lost(target: str, home: Path) -> None:
    talk(target, "hello\n", "--save", "one")
    other = json.loads((home / "one.json").read_text())
    other["messages"] += [{"role": "user", "content": "B"}, {"role": "assistant", "content": "b"}]

    class Beside:
        """Lines of a chat; another process goes on with it before the second."""

        def __iter__(self):
            yield "more\n"
            (home / "one.json").write_text(json.dumps(other))
            yield "again\n"
            yield "/save two\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.cli.chat._lines", lambda *_: iter(Beside()))
        told = talk(target, "", "--resume", "one")
    assert "another process went on with chat 'one', so this one is not saved; /save NAME" in (
        told.output
    )
    assert json.loads((home / "one.json").read_text()) == other
    asked = [each["content"] for each in chats.read("two")[1].messages[::2]]
    assert asked == ["hello", "more", "again"]


def test_a_typed_name_wins_over_a_configured_chat(
    target: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_CONFIG", str(tmp_path / "config.toml"))
    made = run("config", "set", "chat.resume", "x")
    assert made.exit_code == 0, made.output
    talk(target, "hello\n", "--save", "foo")
    assert len(chats.read("foo")[1].messages) == 2
    line = refused("chat", "--model", target, given="hello\n")
    assert "no chat is named 'x'" in line


def test_a_folder_is_no_chat(target: str, home: Path) -> None:
    (home / "dir.json").mkdir(parents=True)
    assert "no chat is named 'dir'" in refused("chat", "--model", target, "--resume", "dir")


def test_a_full_disk_does_not_end_the_chat(
    target: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, chat: SavedChat) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(chats, "write", full)
    made = talk(target, "hello\nworld\n/save other\n", "--save", "fox")
    assert made.stderr.count("the disk is full") == 3
    assert len(made.stdout.splitlines()) >= 2


def test_a_built_in_name_is_the_same_everywhere(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("smollm2-135m") == "smollm2-135m"
    (tmp_path / "mine").mkdir()
    assert absolute("mine") == str(tmp_path / "mine")
