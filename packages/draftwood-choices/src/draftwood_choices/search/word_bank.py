"""Word banks: grammars of answers that have words of a text alone."""

import json
import re
from typing import Any

WORDS = 12
"""Words of such an answer at most."""
GRAMMARS = ("grammar", "json_schema")
"""Options that would hold beside a bank's own grammar."""
SHORTEST = 3
"""Letters of a part of a word, as Anna in Anna's, that counts as a word too."""
WORD = re.compile(r"\w+(?:[-'.,]\w+)*")


def prompt_text(prompt: Any) -> str:
    """Text of a prompt, or of what users say in a chat."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(each["content"] for each in prompt if each["role"] == "user")


def bank_grammar(text: str) -> str:
    """Grammar in Lark of answers that have words of a text alone, with any marks between them.

    One space may come first, as it does where a text is continued. Parts of words that a hyphen or
    an apostrophe joins are words too.

    Raises:
        ValueError: for a text without words.
    """
    found = {*WORD.findall(text)}
    parts = {part for word in found for part in re.split(r"\W", word) if len(part) >= SHORTEST}
    words = sorted(found | parts)
    if not words:
        raise ValueError(
            "the task holds no word that an answer could have; give the evidence and the question"
        )
    bank = " | ".join(json.dumps(word, ensure_ascii=False) for word in words)
    shape = f'" "? word (MARKS word){{0,{WORDS - 1}}} MARKS?'
    return f"start: {shape}\nword: {bank}\nMARKS: /[^\\w]{{1,3}}/\n"
