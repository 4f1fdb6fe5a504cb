"""`/edit` of a chat: a file as the model would have it, shown as a diff and written when told."""

import difflib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.text_files import with_files
from draftwood.storage.home import expanded

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel
    from draftwood.text.stream import Generation, Stream
    from draftwood.text.thoughts import Thought

WORDS = re.compile(r'(?:"([^"]+)"|(\S+))\s+(\S.*)', re.DOTALL)
"""A file, in quotes or not, and what is to be done."""
FENCE = "```"
FENCED = re.compile(r"\A((?:(?!```).)*)```[^\n]*\n(.*)\n?```", re.DOTALL)
"""An answer whose text stands between fences, and words before it."""
MARK = re.compile(r"^[ \t]*```[ \t]*([^\s`]*)[^`\n]*$", re.MULTILINE)
"""A line that is a fence; where it names a language, it opens code."""
ASKED = "```\n{text}\n```\n\n{wish}\n\nAnswer with the whole changed file and nothing else."
OF_ANSWERS = ("stop", "min_tokens", "ignore_eos")
"""Options of texts that say where an answer ends; a file ends where the model ends it."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that a terminal obeys."""
MORE = 256  # tokens that a changed file may have more than one and a half times the file's
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class OpenFile:
    """A file that is to be changed.

    Attributes:
        path: of the file.
        text: as it is stored.
    """

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "OpenFile":
        """Read it.

        Raises:
            ValueError: for what is no file of UTF-8 text, or an empty one.
        """
        try:
            with expanded(path).open(encoding="utf-8", newline="") as file:
                found = cls(expanded(path), file.read())
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        if not found.text.strip():
            raise ValueError(f"{path} is empty; /edit changes a text that is there")
        return found

    @property
    def lines(self) -> str:
        """The text with the line ends that models write."""
        return self.text.replace("\r\n", "\n")

    def changed(self, answer: str) -> "FileEdit":
        """The file as an answer has it, with its own line ends."""
        fenced = FENCED.match(answer)
        if fenced is not None and (FENCE not in self.text or not fenced[1].strip()):
            answer = fenced[2] if FENCE in self.text else _to_its_end(fenced[2])
        text, lines = answer.replace("\r\n", "\n").rstrip("\n"), self.lines
        before = min(_leading(text), _leading(lines))
        text = "\n" * before + text.lstrip("\n") + lines[len(lines.rstrip("\n")) :]
        return FileEdit(self, self._with_own_ends(text))

    def _with_own_ends(self, text: str) -> str:
        """A changed text in which each line ends as the one that it was, or that it follows."""
        ends = ["\r" * each.endswith("\r") for each in self.text.split("\n")[:-1]]
        if "\r" not in ends:
            return text
        old, new, made = self.lines.split("\n"), text.split("\n"), list[str]()
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for _, start, stop, first, last in matcher.get_opcodes():
            for number in range(last - first):
                was = min(start + number, stop - 1, len(ends) - 1)
                made.append(new[first + number] + ends[max(was, 0)])
        made[-1] = new[-1]
        return "\n".join(made)


@dataclass(frozen=True)
class FileEdit:
    """A file, and what is to stand in it."""

    file: OpenFile
    text: str

    @property
    def diff(self) -> list[str]:
        """Lines of a unified diff; none where nothing changes."""
        old, new = (each.removesuffix("\n").split("\n") for each in (self.file.text, self.text))
        name = str(self.file.path)
        return list(difflib.unified_diff(old, new, name, name, lineterm=""))

    def show(self, colour: bool) -> None:
        """Print the diff, in colour where a terminal shows it and ``NO_COLOR`` is not set."""
        coloured = None if options.is_coloured(colour) else False
        for line in self.diff:
            shown = CONTROL.sub(lambda sign: repr(sign[0])[1:-1], line.removesuffix("\r"))
            styled = click.style(shown, COLOURS.get(line[:1]), bold=line[:3] in ("---", "+++"))
            click.echo(styled, color=coloured)

    def write(self) -> None:
        """Write the file in its place, whole or not at all; its mode and links to it stay.

        Raises:
            ValueError: where it is not what it was, or cannot be written.
        """
        from draftwood.storage.atomic import explain_write_errors, write_file

        path = self.file.path
        if OpenFile.read(path) != self.file:
            raise ValueError(f"{path} has changed since; /edit it again")
        if not os.access(path, os.W_OK):
            raise ValueError(f"cannot write {path}: Permission denied")
        try:
            write_file(
                path.resolve(), self._put, lambda at: explain_write_errors(at, "copy it elsewhere")
            )
        except OSError as error:
            raise ValueError(str(error)) from None

    def _put(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(self.text)
        shutil.copymode(self.file.path, path)


def begin(lm: "LanguageModel", wanted: str, decoding: dict[str, Any]) -> "tuple[OpenFile, Stream]":
    """Let a model write a file as somebody wants it; the file itself drafts.

    Args:
        wanted: the file's name, in quotes where it holds blanks, and what is to be done.
        decoding: options of texts; the length follows from the file, and no other option ends it.

    Raises:
        ValueError: for a file that cannot be read, or does not fit the model's context.
    """
    words = WORDS.fullmatch(wanted)
    if words is None:
        raise ValueError("/edit takes a file and what to do with it: /edit app.py add type hints")
    file = OpenFile.read(Path(words[1] or words[2]))
    wish = with_files(words[3])
    prompt = [{"role": "user", "content": ASKED.format(text=file.lines, wish=wish)}]
    length = len(lm.encode(file.lines, raw=True))
    options = {name: value for name, value in decoding.items() if name not in OF_ANSWERS}
    options["max_new_tokens"] = length + length // 2 + MORE
    if lm.method.drafter.takes_prediction:
        options["prediction"] = file.lines
    return file, lm.stream(prompt, **options)


def _leading(text: str) -> int:
    """Number of line breaks that a text begins with."""
    return len(text) - len(text.lstrip("\n"))


def _to_its_end(text: str) -> str:
    """Text behind a fence, up to the one that closes it; code inside it has fences of its own."""
    open_fences = 1
    for mark in MARK.finditer(text):
        open_fences += 1 if mark[1] else -1
        if not open_fences:
            return text[: mark.start()]
    return text


def proposed(file: OpenFile, result: "Generation", thought: "Thought | None" = None) -> FileEdit:
    """The change that an answer holds, behind its thought.

    Raises:
        ValueError: for an answer that was cut, or is empty.
    """
    if result.finish_reason == "length":
        raise ValueError(
            f"the answer was cut after {len(result.token_ids)} tokens, so nothing is changed;"
            " /edit a shorter file"
        )
    text = result.text if thought is None else thought.said(result.text)
    if not text.strip():
        raise ValueError("the answer is empty, so nothing is changed")
    return file.changed(text)
