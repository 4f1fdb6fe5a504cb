"""Read entities and example sentences out of WordNet's files (Fellbaum 1998)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

INSTANCES = {"18": "person", "15": "place", "17": "landmark", "04": "event", "28": "event"}
"""Class of entities with names of their own, by the number of their file."""
COMMON = {
    "04": "activity",
    "05": "animal",
    "06": "object",
    "07": "quality",
    "08": "body",
    "09": "idea",
    "10": "idea",
    "12": "feeling",
    "13": "food",
    "14": "group",
    "17": "nature",
    "19": "nature",
    "20": "plant",
    "22": "nature",
    "26": "condition",
    "27": "substance",
}
"""Class of nouns likewise."""
RARE = ("animal", "plant", "food")
"""Classes of which words count that no tagged text has, if they are short."""
LONGEST_RARE = 9


@dataclass(frozen=True)
class Entity:
    """A word or name with its gloss.

    Attributes:
        parent: what it is a kind or an instance of, by number.
    """

    name: str
    kind: str
    gloss: str
    parent: str


def entities(data: str, index: str) -> list[Entity]:
    """Names of persons, places and events, and common nouns by their first sense.

    Args:
        data: the file ``data.noun``.
        index: the file ``index.noun``.
    """
    lines = dict(_synsets(data))
    named = [each for line in lines.values() if (each := _named(line)) is not None]
    common = [each for line in index.splitlines() if (each := _common(line, lines)) is not None]
    return sorted({each.name: each for each in (*common, *named)}.values(), key=lambda e: e.name)


def sentences(*files: str) -> list[str]:
    """Sentences that glosses give as examples, with a capital and a full stop."""
    found = set()
    for file in files:
        for text in re.findall(r'"([^"]{25,160})"', file):
            words = text.split()
            if len(words) >= 6 and re.fullmatch(r"[\w ,;'-]+[.!?]?", text):
                said = text[0].upper() + text[1:]
                found.add(said if said[-1] in ".!?" else f"{said}.")
    return sorted(found)


def pairs(known: Sequence[Entity]) -> list[tuple[str, str]]:
    """Common nouns of one parent, neighbours by name: what people mix up."""
    by_parent: dict[str, list[str]] = {}
    for each in known:
        if each.kind in COMMON.values():
            by_parent.setdefault(f"{each.kind} {each.parent}", []).append(each.name)
    return [
        (one, other)
        for _, names in sorted(by_parent.items())
        if 2 <= len(names) <= 40
        for one, other in zip(names[::2], names[1::2], strict=False)
    ]


def by_kind(known: Sequence[Entity]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in known:
        found.setdefault(each.kind, []).append(each.name)
    return found


def _synsets(data: str) -> Iterator[tuple[str, list[str]]]:
    """Number of each synset, and its fields with the gloss as the last."""
    for line in data.splitlines():
        if line[:1].isdigit():
            head, _, gloss = line.partition(" | ")
            yield line[:8], [*head.split(), gloss.strip()]


def _named(fields: list[str]) -> Entity | None:
    kind = INSTANCES.get(fields[1])
    if kind is None or "@i" not in fields:
        return None
    count = int(fields[3], 16)
    names = [name.replace("_", " ") for name in fields[4 : 4 + 2 * count : 2]]
    name = names[0]
    if kind == "person":  # "Chopin", "Kate Chopin", "Kate O'Flaherty Chopin"
        name = next((each for each in names if " " in each), name)
    parent = fields[fields.index("@i") + 1]
    return Entity(name, kind, _meaning(fields[-1]), parent)


def _common(line: str, synsets: Mapping[str, list[str]]) -> Entity | None:
    if line.startswith(" "):
        return None
    fields = line.split()
    pointers = int(fields[3])
    tagged, first = int(fields[5 + pointers]), synsets[fields[6 + pointers]]
    kind, name = COMMON.get(first[1]), fields[0].replace("_", " ")
    if kind is None or "@i" in first or not re.fullmatch(r"[a-z]{3,}( [a-z]{3,})?", name):
        return None
    if not tagged and not (kind in RARE and len(name) <= LONGEST_RARE):
        return None
    if not any(each.replace("_", " ") == name for each in first[4::2]):
        return None  # it is written with a capital
    parent = first[first.index("@") + 1] if "@" in first else ""
    return Entity(name, kind, _meaning(first[-1]), parent)


def _meaning(gloss: str) -> str:
    """A gloss without examples."""
    return gloss.partition('; "')[0].strip()
