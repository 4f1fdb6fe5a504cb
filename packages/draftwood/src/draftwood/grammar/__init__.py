"""Grammars for texts: JSON schemas, Lark grammars, regular expressions and calls of tools.

``llguidance`` computes which tokens they allow. It comes with ``draftwood[grammar]``, and is
imported when the first grammar is compiled.
"""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.grammar.compiler import Compiler
    from draftwood.grammar.grammar import Grammar
    from draftwood.grammar.tools import Tool, ToolChoice, with_tools

_HOMES = {
    "draftwood.grammar.compiler": ("Compiler",),
    "draftwood.grammar.grammar": ("Grammar",),
    "draftwood.grammar.tools": ("Tool", "ToolChoice", "with_tools"),
}
__all__ = [
    "Compiler",
    "Grammar",
    "Tool",
    "ToolChoice",
    "with_tools",
]
__getattr__ = importer(__name__, _HOMES)
