"""Grammars for texts: JSON schemas, Lark grammars, regular expressions and calls of tools.

``llguidance`` computes which tokens they allow. It comes with ``draftwood[serve]`` and is imported
when the first grammar is compiled.
"""

from draftwood.grammar.calls import CallDelta, ContentDelta, ToolCall, ToolReader, read_calls
from draftwood.grammar.compiler import Compiler
from draftwood.grammar.grammar import Grammar
from draftwood.grammar.tools import Tool, ToolChoice, read_tools, with_tools

__all__ = [
    "CallDelta",
    "Compiler",
    "ContentDelta",
    "Grammar",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolReader",
    "read_calls",
    "read_tools",
    "with_tools",
]
