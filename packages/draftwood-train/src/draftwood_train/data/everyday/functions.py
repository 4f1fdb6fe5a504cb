"""Functions of Python packages, with what their docstrings say."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

CODE_LINES = range(3, 41)
"""Lines of a function's code that make a prompt."""
MOST_TOLD = 14
"""Lines of a docstring that are read, whole paragraphs."""


@dataclass(frozen=True)
class Function:
    """A function of a package.

    Attributes:
        book: package and module, ``networkx:algorithms/dag``.
        signature: lines up to the colon.
        told: first paragraphs of the docstring.
        code: lines behind the docstring.
    """

    book: str
    signature: str
    told: str
    code: str

    @property
    def stub(self) -> str:
        """Signature and docstring."""
        return f'{self.signature}\n    """{_indented(self.told)}\n    """'

    @property
    def bare(self) -> str:
        """Function without its docstring."""
        return f"{self.signature}\n{self.code}"

    @property
    def whole(self) -> str:
        return f"{self.stub}\n{self.code}"


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ").strip()


def functions(book: str, text: str) -> Iterator[Function]:
    """Functions and methods of a module that have a docstring and are neither short nor long.

    Tests are left out.
    """
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test"):
            found = _function(book, node, lines)
            if found is not None:
                yield found


def _function(book: str, node: ast.FunctionDef, lines: list[str]) -> Function | None:
    told, code = ast.get_docstring(node), lines[node.body[0].end_lineno or 0 : node.end_lineno]
    if not told or len(code) not in CODE_LINES:
        return None
    signature = lines[node.lineno - 1 : node.body[0].lineno - 1]
    kept = textwrap.dedent("\n".join([*signature, *code]).expandtabs(4)).splitlines()
    said = _paragraphs(inspect.cleandoc(told))
    return Function(
        book, "\n".join(kept[: len(signature)]), said, "\n".join(kept[len(signature) :]).strip("\n")
    )


def _paragraphs(told: str) -> str:
    """First paragraphs of a docstring, the first one in any case."""
    kept = ""
    for paragraph in told.split("\n\n"):
        longer = f"{kept}\n\n{paragraph}".strip()
        if kept and longer.count("\n") >= MOST_TOLD:
            break
        kept = longer
    return kept
