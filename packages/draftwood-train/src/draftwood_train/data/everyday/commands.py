"""Sentences that people say to an assistant, out of templates by intent (Home Assistant's)."""

import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

DEPTH = 12
"""Rules within rules."""
MOST = 8
"""Sentences of an intent: half of all templates are about timers."""
SHORTEST, LONGEST = 3, 16
"""Words of a sentence."""
_PART = re.compile(r"[()\[\]|]|\{[^}]*\}|<[^>]*>|[^()\[\]|{}<>]+")


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """Intents and sentences of a language's file, the same on every machine.

    Templates say all that is understood, good language or not, and what they name first is said
    most: so each gives one sentence, of first alternatives, without what may be left out. It gives
    none where a slot is open, such as the name of a room.
    """
    told = json.loads(text)
    for intent, content in told["intents"].items():
        templates = [each for block in content["data"] for each in block["sentences"]]
        rng = random.Random(intent)
        said = dict.fromkeys(_sentence(each, told, rng) for each in templates)
        fitting = [each for each in said if SHORTEST <= len(each.split()) <= LONGEST]
        yield from ((intent, each) for each in rng.sample(fitting, min(MOST, len(fitting))))


def _sentence(template: str, told: Mapping[str, Any], rng: random.Random) -> str:
    """The sentence of a template; "" where a slot is open."""
    try:
        said = " ".join(_Template(template, told, rng).text().split())
    except LookupError:
        return ""
    return said[:1].upper() + said[1:]


class _Template:
    """Template, read from left to right: ``(one|other)``, ``[perhaps]``, ``<rule>``, ``{slot}``.

    Raises:
        LookupError: for slots and rules that nothing fills.
    """

    def __init__(
        self, template: str, told: Mapping[str, Any], rng: random.Random, depth: int = 0
    ) -> None:
        if depth > DEPTH or ";" in template:  # words in any order
            raise LookupError(template)
        self._parts, self._at = _PART.findall(template), 0
        self._told, self._rng, self._depth = told, rng, depth

    def text(self) -> str:
        """Its sentence."""
        return self._first("")

    def _first(self, end: str) -> str:
        """The first alternative up to an end, which is read too."""
        found = [""]
        while self._at < len(self._parts):
            part = self._parts[self._at]
            self._at += 1
            if part == end:
                break
            if part == "|":
                found.append("")
            else:
                found[-1] += self._said(part, found[-1])
        return found[0]

    def _said(self, part: str, before: str) -> str:
        if part == "(":
            return self._first(")")
        if part == "[":
            said = self._first("]")
            return said if before[-1:].isalpha() else ""  # the end of a word, such as of a plural
        if part[0] == "<":
            return self._inner(self._told["expansion_rules"][part[1:-1]])
        return self._of_slot(part[1:-1].partition(":")[0]) if part[0] == "{" else part

    def _inner(self, template: str) -> str:
        return _Template(template, self._told, self._rng, self._depth + 1).text()

    def _of_slot(self, name: str) -> str:
        listed = self._told["lists"][name]
        if "values" in listed:
            value = self._rng.choice(listed["values"])
            return self._inner(value["in"] if isinstance(value, dict) else value)
        span = listed["range"]
        first = max(2, span["from"])  # words behind it are plurals
        return str(self._rng.randrange(first, span["to"] + 1, span.get("step", 1)))
