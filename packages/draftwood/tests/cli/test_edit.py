"""`/edit` of a chat: a diff first, and the file once it is told."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command import run
from draftwood.cli import edit
from draftwood.cli.conversation import Conversation, Manner
from draftwood.cli.edit import OpenFile
from draftwood.text.thoughts import Thought

TEXT = "def one():\n    return 1\n\n\ndef two():\n    return 2\n"
CHANGED = TEXT.replace("two", "deux")


class Writer:
    """A language model that answers with a text."""

    def __init__(self, answer: str, reason: str = "stop", takes: bool = True) -> None:
        self.method = SimpleNamespace(drafter=SimpleNamespace(takes_prediction=takes))
        self.answer, self.reason = answer, reason
        self.tags: Thought | None = None
        self.asked: dict[str, Any] = {}

    def encode(self, text: str, raw: bool) -> list[int]:
        return list(range(len(text.split())))

    def thought(self, prompt: Any) -> Thought | None:
        return self.tags

    def stream(self, prompt: Any, **options: Any) -> Any:
        self.asked = {"prompt": prompt, **options}
        stats, ids = conversation_stats(), [0] * 9
        found = SimpleNamespace(
            text=self.answer, finish_reason=self.reason, token_ids=ids, stats=stats, method="auto"
        )
        return Answer(found)


class Answer(list[str]):
    def __init__(self, result: Any) -> None:
        super().__init__([result.text])
        self.result, self.sequence = result, SimpleNamespace(prompt=[])


def conversation_stats() -> Any:
    from draftwood.stats import Stats

    return Stats(tokens=9)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.py"
    path.write_bytes(TEXT.encode())
    path.chmod(0o755)
    return path


def chat(writer: Writer) -> Conversation:
    """A conversation that knows all that editing needs."""
    made = Conversation.__new__(Conversation)
    made.lm, made.decoding, made.manner = writer, {"temperature": 0.0}, Manner(True)  # type: ignore[assignment]
    made.stats, made.used, made._edit = conversation_stats(), {}, None
    made._commands = {"/edit": made._edit_file, "/write": made._write_file}
    return made


def test_a_diff_is_shown_and_the_file_written_when_told(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(f"Here it is:\n```python\n{CHANGED}```\nDone.")
    talk = chat(writer)
    assert talk.take(f"/edit {file} rename two to deux")
    shown = capsys.readouterr()
    assert "-def two():" in shown.out
    assert "+def deux():" in shown.out
    assert "/write writes this" in shown.err
    assert file.read_text() == TEXT
    assert writer.asked["prediction"] == TEXT
    assert writer.asked["temperature"] == 0.0
    assert writer.asked["max_new_tokens"] > len(TEXT.split())
    assert TEXT in writer.asked["prompt"][0]["content"]
    assert "rename two to deux" in writer.asked["prompt"][0]["content"]
    talk.take("/write")
    assert file.read_text() == CHANGED
    assert file.stat().st_mode & 0o777 == 0o755
    talk.take("/write")
    assert "there is nothing to write" in capsys.readouterr().err


def test_a_file_that_changed_meanwhile_is_left_alone(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = chat(Writer(CHANGED))
    talk.take(f"/edit {file} rename two")
    file.write_text("mine")
    talk.take("/write")
    assert "has changed since; /edit it again" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_a_write_that_fails_leaves_the_file_whole(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    talk = chat(Writer(CHANGED))
    talk.take(f"/edit {file} rename two")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        talk.take("/write")
    assert "the disk is full; free some space" in capsys.readouterr().err
    assert file.read_text() == TEXT
    assert list(file.parent.iterdir()) == [file]
    talk.take("/write")
    assert file.read_text() == CHANGED


def test_mode_and_links_stay(file: Path, tmp_path: Path) -> None:
    file.chmod(0o750)
    link = tmp_path / "link.py"
    link.symlink_to(file)
    talk = chat(Writer(CHANGED))
    talk.take(f"/edit {link} rename two")
    talk.take("/write")
    assert link.is_symlink()
    assert file.read_text() == CHANGED
    assert file.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("answer", "reason", "told"),
    [
        (CHANGED, "length", "the answer was cut after 9 tokens, so nothing is changed"),
        (" \n", "stop", "the answer is empty"),
        (f"```\n{TEXT}```", "stop", "the model would change nothing"),
    ],
)
def test_answers_that_change_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], answer: str, reason: str, told: str
) -> None:
    talk = chat(Writer(answer, reason))
    talk.take(f"/edit {file} rename two")
    talk.take("/write")
    shown = capsys.readouterr().err
    assert told in shown
    assert "there is nothing to write" in shown
    assert file.read_text() == TEXT


def test_bad_files_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    talk = chat(Writer(CHANGED))
    for words, told in (
        ("", "/edit takes a file and what to do with it"),
        ("app.py", "/edit takes a file and what to do with it"),
        (f"{tmp_path}/missing add hints", "cannot read"),
        (f"{tmp_path} add hints", "cannot read"),
        (f"{tmp_path}/bytes add hints", "is not UTF-8 text"),
        (f"{tmp_path}/empty add hints", "is empty"),
    ):
        talk.take(f"/edit {words}".strip())
        shown = capsys.readouterr().err
        assert told in shown
        assert shown.count("\n") == 1


def test_names_with_blanks_and_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "my file.txt"
    path.write_bytes(b"one\r\ntwo\r\n\r\n")
    writer = Writer("```\none\nTWO\n```", takes=False)
    file, stream = edit.begin(writer, f'"{path}" shout', {})  # type: ignore[arg-type]
    assert "prediction" not in writer.asked
    found = edit.proposed(file, stream.result)
    found.write()
    assert path.read_bytes() == b"one\r\nTWO\r\n\r\n"


@pytest.mark.parametrize("fence", ["```", ""])
def test_a_thought_is_no_part_of_the_file(
    fence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 0\n")
    said = f"{fence}python\ny = 1\n{fence}" if fence else "y = 1\n"
    writer = Writer(f"<think>\nIt is\n```python\nx = 1\n```\nso</think>\n\n{said}")
    writer.tags = Thought("<think>", "</think>", False)
    talk = chat(writer)
    talk.take(f"/edit {path} change it")
    talk.take("/write")
    assert path.read_text() == "y = 1\n"


@pytest.mark.parametrize(
    ("stored", "answer", "written"),
    [
        ("a\r\nb\nc\n", "a\nb\nc\n", "a\r\nb\nc\n"),
        ("a\r\nb\nc\nd\n", "a\nb\nC\nd\n", "a\r\nb\nC\nd\n"),
        ("a\r\nb\nc\n", "A\nB\nc\n", "A\r\nB\nc\n"),
        ("a\nb\r\nc\r\n", "a\nb\nnew\nc\n", "a\nb\r\nnew\r\nc\r\n"),
        ("a\r\nb\r\nc", "new\na\nc", "new\r\na\r\nc"),
        ("a\r\nb", "a\nb\nc", "a\r\nb\r\nc"),
        ("a\r\nb", "b", "b"),
        ("a\r\n", "a\r\nb\r\n", "a\r\nb\r\n"),
        ("a\rb\n", "a\rB\n", "a\rB\n"),
        ("\n\nx\ny\n", "\n\nx\nY\n", "\n\nx\nY\n"),
        ("\r\n\r\nx\r\n", "\n\nX\n", "\r\n\r\nX\r\n"),
        ("\n\nx\n", "\nx\n", "\nx\n"),
        ("x\n", "\n\nx\ny\n", "x\ny\n"),
    ],
)
def test_lines_keep_their_ends_and_the_file_its_blank_lines(
    stored: str, answer: str, written: str
) -> None:
    made = OpenFile(Path("a"), stored).changed(f"```\n{answer}```")
    assert made.text == written
    assert bool(made.diff) == (written != stored)


def test_a_diff_shows_signs_that_break_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = OpenFile(Path("a"), "a\x0cb\r\nc\u2028d\r\n").changed("a\nb\nc\u2028d\x1b[2J")
    made.show(False)
    shown = capsys.readouterr().out
    assert shown.endswith("-a\\x0cb\n-c\u2028d\n+a\n+b\n+c\u2028d\\x1b[2J\n")


def test_no_option_of_answers_ends_a_file(file: Path, tmp_path: Path) -> None:
    (tmp_path / "style.txt").write_text("four blanks")
    writer = Writer(CHANGED)
    decoding = {"stop": ["\n\n"], "min_tokens": 400, "ignore_eos": True, "temperature": 0.5}
    edit.begin(writer, f"{file} indent by @{tmp_path}/style.txt", decoding)  # type: ignore[arg-type]
    assert writer.asked.keys() == {"prompt", "temperature", "max_new_tokens", "prediction"}
    assert "indent by four blanks\n" in writer.asked["prompt"][0]["content"]
    with pytest.raises(ValueError, match=r"there is no file nofile\.txt"):
        edit.begin(writer, f"{file} follow @nofile.txt", decoding)  # type: ignore[arg-type]


def test_fences_inside_the_file_stay() -> None:
    text = "# Title\n\n```\ncode\n```\n\nEnd.\n"
    file = OpenFile(Path("a.md"), text)
    assert file.changed(f"```markdown\n{text}```").text == text
    assert file.changed(text).text == text
    assert file.changed("plain words").text == "plain words\n"


PROSE = "\n\nThis prints:\n\n```\n1\n```"
MARKDOWN = "# One\n\n```python\n1\n```\n\nEnd.\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (f"```python\n{CHANGED}```{PROSE}", CHANGED),
        (f"Here it is:\n\n```python\n{CHANGED}```{PROSE}\n\nDone.", CHANGED),
        (f"```python\n{CHANGED}```\nRun it:\n```bash\npython a.py\n```", CHANGED),
        (f"```markdown\n{MARKDOWN}```", MARKDOWN),
        (f"```markdown\n{MARKDOWN}```{PROSE}", MARKDOWN),
    ],
)
def test_words_and_code_behind_the_file_stay_out(answer: str, text: str) -> None:
    assert OpenFile(Path("a.py"), TEXT).changed(answer).text == text


def test_a_diff_is_in_colour_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda stream, color: color is False)
    change = OpenFile(Path("a.py"), TEXT).changed(CHANGED)
    shown = []
    for colour, told in ((True, ""), (False, ""), (True, "1")):
        monkeypatch.setenv("NO_COLOR", told)
        change.show(colour)
        shown.append("\x1b[" in capsys.readouterr().out)
    assert shown == [True, False, False]


def test_a_real_chat_knows_the_commands(target: str, file: Path) -> None:
    given = f"/help\n/edit {file} add hints\n/write\n"
    found = run("chat", "--model", target, "--max-new-tokens", "8", given=given)
    assert found.exit_code == 0, found.output
    assert "/edit FILE TEXT" in found.stderr
    assert "nothing is changed" in found.stderr
    assert file.read_text() == TEXT
