"""Thoughts that a chat template opens: closed before an answer that must begin at once."""

import re
from collections.abc import Sequence

from draftwood.engine.constraint import Constraint
from draftwood.grammar.grammar import Grammar
from draftwood.tokenizer.protocol import AnyTokenizer

OPEN = re.compile(r"<((?:\w+:)?think(?:ing)?)>\s*\Z")
TAIL = 16
"""Last tokens of a prompt, among which the tag of a thought is."""


def with_closed_thought(
    tokenizer: AnyTokenizer, prompt: Sequence[int], constraint: Constraint
) -> list[int]:
    """Close a thought at the end of a prompt, where a grammar leaves no place for one.

    Else JSON would be written as a thought. The tags stand as where templates think nothing.
    """
    tokens = list(prompt)
    if isinstance(constraint, Grammar) and constraint.begins_at_once:
        found = OPEN.search(str(tokenizer.decode(tokens[-TAIL:], skip_special_tokens=False)))
        if found is not None:
            closing = f"\n</{found[1]}>\n\n"
            tokens += tokenizer(closing, add_special_tokens=False)["input_ids"]
    return tokens
