"""Text on the screen as it comes, its Markdown and code in colour where a terminal shows it."""

import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, Protocol

import click

from draftwood.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from draftwood.text.thoughts import Thought

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*")
LEADING = re.compile(r"(?P<heading>#{1,6} )|(?P<quote> {0,3}> ?)|(?P<bullet>\s*)[-*+] ")
INLINE = re.compile(
    r"(?P<code>`+)(?P<in_code>[^`]+)(?P=code)"
    r"|\*\*(?=\S)(?P<strong>.+?)(?<=\S)\*\*"
    r"|(?<![\w*])\*(?=[^\s*])(?P<emphasis>[^*]+)(?<=\S)\*(?![\w*])"
)
STYLES = {"in_code": "cyan", "strong": "bold", "emphasis": "italic"}
UNEVEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200d\ufe0f]")
"""Characters after which nobody knows where the cursor is."""
MOST_LINES = 200
"""Lines of code that are read again to colour the newest."""
TAB = 8


class TextWriter(Protocol):
    """A place for one text."""

    def write(self, piece: str) -> None:
        """Show the next piece at once."""
        ...

    def end(self) -> None:
        """End the text's last line."""
        ...


def writer(colour: bool = True, thought: "Thought | None" = None) -> TextWriter:
    """A place for a text on stdout: in colour on a terminal that can move its cursor, unless
    ``NO_COLOR`` is set.

    Args:
        colour: False leaves the text as it is.
        thought: that the text may begin with, or within; it is shown dim.
    """
    if not options.is_coloured(colour) or not sys.stdout.isatty():
        return Plain()
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if console.is_dumb_terminal or console.legacy_windows:
        return Plain()
    return Painter(console, thought)


class Plain:
    """Prints a text as it is."""

    def write(self, piece: str) -> None:
        click.echo(piece, nl=False)

    def end(self) -> None:
        click.echo()


class Painter:
    """Prints pieces as they come, and each line again in colour once it is whole.

    Args:
        console: of a terminal.
        thought: that the text may begin with, or within.
    """

    def __init__(self, console: "Console", thought: "Thought | None" = None) -> None:
        self.console, self.markdown, self.line = console, Markdown(thought), ""

    def write(self, piece: str) -> None:
        first, *others = piece.split("\n")
        self._add(first)
        for each in others:
            self._end_line()
            self._add(each)
        self.console.file.flush()

    def end(self) -> None:
        self._end_line()
        self.console.file.flush()

    def _add(self, text: str) -> None:
        self.line += text
        self.console.file.write(text)

    def _end_line(self) -> None:
        painted = self.markdown.line(self.line)
        width, height = shutil.get_terminal_size()
        rows = rows_of(self.line, width)
        if painted is not None and rows < height and not UNEVEN.search(self.line):
            up = f"\x1b[{rows - 1}A" if rows > 1 else ""
            self.console.file.write(f"\r{up}\x1b[J")
            self.console.print(painted, soft_wrap=True, end="")
        self.console.file.write("\n")
        self.line = ""


def rows_of(line: str, width: int) -> int:
    """Rows of a terminal that a line takes."""
    from rich.cells import cell_len

    rows, column = 1, 0
    for character in line:
        if character == "\t":
            column = min(column + TAB - column % TAB, width - 1)
            continue
        size = cell_len(character)
        if column + size > width:
            rows, column = rows + 1, 0
        column += size
    return rows


class Markdown:
    """Styles of lines of Markdown, each of which is seen once, in order.

    Args:
        thought: that may begin with the first of them, or before it.
    """

    def __init__(self, thought: "Thought | None" = None) -> None:
        self.thought, self.begins = thought, thought is not None
        self.thinks = thought is not None and thought.is_open
        self.fence = ""  # that opened the code
        self.language, self.code = "", list[str]()

    def line(self, line: str) -> "Text | None":
        """A whole line in its styles; None where it has none."""
        from rich.text import Text

        if (self.begins or self.thinks) and line.strip():
            if thought := self._thought(line):
                said = line[len(thought) :]
                return Text.assemble((thought, "dim"), self._said(said) or said)
        elif self.thinks:
            return None
        return self._said(line)

    def _said(self, line: str) -> "Text | None":
        """A line of an answer in its styles; None where it has none."""
        from rich.text import Text

        fence = FENCE.fullmatch(line)
        if self.fence:
            if fence and fence[1].startswith(self.fence) and not fence[2]:
                self.fence = ""
                return Text(line, "dim")
            return self._coloured(line)
        if fence:
            self.fence, self.language, self.code = fence[1], fence[2], []
            return Text(line, "dim")
        return self._prose(line)

    def _thought(self, line: str) -> str:
        """The part of a line that belongs to a thought, with its tags."""
        assert self.thought is not None
        opening, closing = self.thought.opening.rstrip(), self.thought.closing
        begun, answer = line.lstrip(), self.thought.answer
        is_thought = self.thinks or begun.startswith(opening)
        if not is_thought and answer and begun.startswith(answer):
            closing, is_thought = answer, True
        before, tag, _ = line.partition(closing)
        self.begins, self.thinks = False, is_thought and not tag
        return before + tag if is_thought else ""

    def _coloured(self, line: str) -> "Text | None":
        """A line of code, coloured by its language."""
        self.code = [*self.code, line][-MOST_LINES:]
        if not self.language or not line.strip():
            return None
        from rich.syntax import Syntax

        looks: Any = {"theme": "ansi_dark", "background_color": "default", "tab_size": TAB}
        syntax = Syntax("", self.language, **looks)
        lines = syntax.highlight("\n".join(self.code)).split("\n", allow_blank=True)
        return lines[len(self.code) - 1]

    def _prose(self, line: str) -> "Text | None":
        from rich.text import Text

        begins = LEADING.match(line)
        kind = begins.lastgroup if begins else None
        if kind == "heading":
            return Text.assemble((line, "bold"))
        if begins is None and not INLINE.search(line):
            return None
        shown = Text(style="dim italic" if kind == "quote" else "")
        if begins is not None:
            shown.append(f"{begins['bullet']}• " if kind == "bullet" else begins[0])
        self._inline(line[begins.end() if begins else 0 :], shown)
        return shown

    def _inline(self, line: str, shown: "Text") -> None:
        """Append a line with its code, bold and italic words, without their marks."""
        end = 0
        for found in INLINE.finditer(line):
            name = found.lastgroup or ""
            shown.append(line[end : found.start()])
            shown.append(found[name], STYLES[name])
            end = found.end()
        shown.append(line[end:])
