"""Grammars for texts: JSON schemas, Lark grammars, regular expressions and calls of tools.

``llguidance`` computes which tokens they allow. It comes with ``draftwood[serve]`` and is imported
when the first grammar is compiled.
"""

from draftwood.grammar.compiler import Compiler
from draftwood.grammar.grammar import Grammar
from draftwood.grammar.tools import Tool, ToolChoice, with_tools

__all__ = [
    "Compiler",
    "Grammar",
    "Tool",
    "ToolChoice",
    "with_tools",
]


def __getattr__(name: str) -> object:
    """Forward names that the package exported before."""
    from draftwood.moved import moved_name

    return moved_name(__name__, name)
