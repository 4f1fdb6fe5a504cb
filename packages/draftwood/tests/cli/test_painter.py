"""Text appears as it comes, and whole lines in colour; what is piped stays as it is."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from command import run
from draftwood.cli import painter
from draftwood.cli.painter import Markdown, Painter, Plain, rows_of, writer
from draftwood.text.thoughts import Thought


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Screen:
    """The characters that a terminal of some width shows, and which of them are styled."""

    def __init__(self, width: int) -> None:
        self.width, self.cells, self.row, self.column = width, [[]], 0, 0
        self.style = ""

    def feed(self, output: str) -> "Screen":
        for code, character in re.findall(r"\x1b\[([\d;]*[A-Za-z])|(.)", output, re.S):
            if character:
                self._put(character)
            elif code.endswith("m"):
                self.style = "" if code in ("0m", "m") else code
            elif code.endswith("A"):
                self.row -= int(code[:-1])
            elif code == "J":
                del self.cells[self.row + 1 :]
                del self.cells[self.row][self.column :]
        return self

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
            return
        if character == "\n" or self.column == self.width:
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.cells):
                self.cells.append([])
        if character != "\n":
            line = self.cells[self.row]
            line[self.column : self.column + 1] = [(character, self.style)]
            self.column += 1

    @property
    def lines(self) -> list[str]:
        return ["".join(each for each, _ in line) for line in self.cells]

    def styled(self, word: str) -> bool:
        """True if every character of a word is shown in a style."""
        for line in self.cells:
            text = "".join(each for each, _ in line)
            if word in text:
                place = text.index(word)
                return all(style for _, style in line[place : place + len(word)])
        raise AssertionError(word)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(painter, "sys", SimpleNamespace(stdout=stream))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


TEXT = """# The fox

It is **quick**, `brown` and *sly*: see fox_run_away and 2*3*4.
* jumps
> over

```python
def leap(dog):
    return "over the lazy " + dog
```
**kwargs stays, and __init__ too"""


def shown(terminal: Terminal, text: str, size: int) -> Screen:
    place = writer()
    assert isinstance(place, Painter)
    for start in range(0, len(text), size):
        place.write(text[start : start + size])
        assert not terminal.getvalue().endswith("\x1b")
    place.end()
    return Screen(20).feed(terminal.getvalue())


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_line_that_is_whole_is_in_colour(terminal: Terminal, size: int) -> None:
    screen = shown(terminal, TEXT, size)
    text = "\n".join(screen.lines)
    joined = text.replace("\n", "")
    assert "It is quick, brown and sly: see fox_run_away and 2*3*4." in joined
    assert "• jumps" in text
    assert "def leap(dog):" in text
    assert '    return "over the lazy " + dog' in joined
    assert "**kwargs stays, and __init__ too" in joined
    for word in ("# The fox", "quick", "brown", "sly", "over", "def", "```python"):
        assert screen.styled(word), word
    assert not screen.styled("It is")
    assert not screen.styled("**kwargs")


@pytest.mark.parametrize(
    ("text", "thinks", "dim"),
    [
        ("<think>\n# so\n\n- it\n</think>\n# yes\n<think>\nno", False, 4),
        ("so **it**\n</think>\n\n# yes\nno", True, 2),
        ("\n\n<think>so</think>\n# yes\nno", False, 1),
        ("# yes\nno\n<think>\nno", False, 0),
    ],
)
def test_thoughts_are_dim(text: str, thinks: bool, dim: int) -> None:
    markdown = Markdown(Thought("<think>", "</think>", thinks))
    painted = [markdown.line(line) for line in text.split("\n")]
    styles = [str(each.style or each.spans[0].style) for each in painted if each is not None]
    assert styles == ["dim"] * dim + ["bold"]


def test_an_answer_on_the_line_where_its_thought_ends_is_not_dim() -> None:
    markdown = Markdown(Thought("<|channel>thought\n", "<channel|>", False))
    lines = [markdown.line(line) for line in ("<|channel>thought", "so", "on<channel|>yes", "no")]
    dim = ["" if each is None else each.plain[: each.spans[0].end] for each in lines]
    assert dim == ["<|channel>thought", "so", "on<channel|>", ""]


def test_an_answer_keeps_its_styles_behind_a_thought_on_its_line() -> None:
    channels = Thought("<|channel|>analysis<|message|>", "<|final|>", False, "<|answer|>")
    fenced = Markdown(channels)
    for line in ("<|channel|>analysis<|message|>so<|final|>```python", "x = 1"):
        assert fenced.line(line) is not None
    assert fenced.fence == "```"
    painted = Markdown(channels).line("<|answer|># Title")
    assert painted is not None
    styles = {painted.plain[each.start : each.end]: str(each.style) for each in painted.spans}
    assert styles == {"<|answer|>": "dim", "# Title": "bold"}


def test_each_piece_is_seen_at_once(terminal: Terminal) -> None:
    place = writer()
    for piece in ("```py", "thon\nde", "f le"):
        place.write(piece)
    assert Screen(20).feed(terminal.getvalue()).lines[-1] == "def le"


def test_other_text_has_no_codes(terminal: Terminal) -> None:
    place = writer()
    place.write("one\ntwo")
    place.end()
    assert re.sub(r"\r?\x1b\[[\dAJ]*", "", terminal.getvalue()) == "one\ntwo\n"


@pytest.mark.parametrize("line", ["a\x1b[2Jb **c**", "**a** b\r", "x" * 300 + " **y**"])
def test_lines_whose_end_nobody_knows_are_left(terminal: Terminal, line: str) -> None:
    place = writer()
    place.write(line)
    place.end()
    assert terminal.getvalue() == f"{line}\n"


def test_plain_text_where_no_colour_is_wanted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(writer(False), Plain)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(writer(), Plain)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(writer(), Painter)
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(writer(), Plain)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(painter, "sys", SimpleNamespace(stdout=io.StringIO()))
    assert isinstance(writer(), Plain)


def test_what_is_piped_is_the_text_alone(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    options = ("generate", "hello", "--model", target, "--max-new-tokens", "12")
    assert run(*options).stdout == run(*options, "--no-color").stdout
    assert "\x1b" not in run(*options).stdout


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("", 1),
        ("a" * 10, 1),
        ("a" * 11, 2),
        ("狐" * 5, 1),
        ("a狐狐狐狐狐", 2),
        ("\tab", 1),
        ("\t\tab", 2),
    ],
)
def test_rows_of_a_line(line: str, rows: int) -> None:
    assert rows_of(line, 10) == rows


def test_code_of_an_unknown_language_and_long_code_stay_readable() -> None:
    markdown = Markdown()
    assert markdown.line("~~~~ nosuchlanguage") is not None
    found = [markdown.line(f"line {number}") for number in range(painter.MOST_LINES + 5)]
    assert [str(each) for each in found] == [f"line {number}" for number in range(len(found))]
    assert markdown.line("~~~") is not None  # shorter than what opened it: code
    assert markdown.fence == "~~~~"
    assert str(markdown.line("~~~~")) == "~~~~"
    assert markdown.line("prose") is None


def test_painted_lines_hold_the_characters_of_the_code() -> None:
    console = Console(file=io.StringIO())
    place = Painter(console)
    code = 'if x:\n\n    """open\n    # no comment"""\n\treturn 1'
    place.write(f"```python\n{code}\n```\n")
    written = console.file.getvalue()  # type: ignore[attr-defined]
    shown = Screen(80).feed(written.expandtabs(8))
    assert shown.lines[1:6] == code.expandtabs(8).splitlines()
