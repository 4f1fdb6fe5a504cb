"""Damaged copies of GGUF files: what chance, or somebody's will, makes of headers and blocks."""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SIZES = {
    **{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1},
    **{10: 8, 11: 8, 12: 8},
}
"""Bytes of numbers by GGUF's types of them."""
TEXT, LIST = 8, 9
UNIT = 32
"""Bytes that tensors are aligned to; what is put in keeps to it, so that tensors stay readable."""
EDGES = (
    *(0, 1, 2, 3, 127, 255, 65_536, 1_000_000, (1 << 24) - 1, (1 << 24) + 1),
    *(1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *(1 << 40, 1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1),
)
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e-40, 3e38)
LONG_TEXT = 1 << 20


@dataclass(frozen=True)
class Field:
    """Bytes of a header that mean one thing.

    Attributes:
        kind: length, text, type, count, value, float, rank, dimension, form or offset.
        owner: the key or the tensor that they are of.
    """

    at: int
    size: int
    kind: str
    owner: str


class Walker:
    """Finds the fields of a whole file, without the reader that is under test."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.fields = content, 24, list[Field]()
        self.fields += [Field(8, 8, "count", "tensors"), Field(16, 8, "count", "keys")]
        tensors, keys = struct.unpack_from("<QQ", content, 8)
        for _ in range(keys):
            self._key()
        for _ in range(tensors):
            self._tensor()

    def _number(self, size: int, kind: str, owner: str) -> int:
        self.fields.append(Field(self.at, size, kind, owner))
        self.at += size
        return int.from_bytes(self.content[self.at - size : self.at], "little")

    def _text(self, owner: str | None = None) -> str:
        size = int.from_bytes(self.content[self.at : self.at + 8], "little")
        found = self.content[self.at + 8 : self.at + 8 + size].decode()
        self._number(8, "length", owner or found)
        self._number(size, "text", owner or found)
        return found

    def _key(self) -> None:
        name = self._text()
        self._value(self._number(4, "type", name), name)

    def _value(self, kind: int, name: str) -> None:
        if kind == TEXT:
            self._text(name)
        elif kind == LIST:
            of = self._number(4, "type", name)
            for _ in range(self._number(8, "count", name)):
                self._value(of, name)
        else:
            self._number(SIZES[kind], "float" if kind in (6, 12) else "value", name)

    def _tensor(self) -> None:
        name = self._text()
        for _ in range(self._number(4, "rank", name)):
            self._number(8, "dimension", name)
        self._number(4, "form", name)
        self._number(8, "offset", name)


@dataclass(frozen=True)
class Whole:
    """A file that may be damaged.

    Attributes:
        fields: of the header, by kind and then by owner: a vocabulary counts as much as a number.
        end: bytes of the header.
    """

    content: bytes
    fields: dict[str, dict[str, list[Field]]]
    end: int

    @classmethod
    def of(cls, content: bytes) -> "Whole":
        walker, fields = Walker(content), dict[str, dict[str, list[Field]]]()
        for each in walker.fields:
            if each.size:
                fields.setdefault(each.kind, {}).setdefault(each.owner, []).append(each)
        return cls(content, fields, walker.at)

    def choose(self, chance: random.Random, *kinds: str) -> Field:
        of_kind = self.fields[chance.choice(kinds)]
        return chance.choice(of_kind[chance.choice(sorted(of_kind))])


@dataclass(frozen=True)
class Change:
    """Bytes that take the place of others, and what that means."""

    at: int
    size: int
    bytes: bytes
    told: str


Way = Callable[[Whole, random.Random], list[Change]]


def flipped_header(whole: Whole, chance: random.Random) -> list[Change]:
    return [_flip(whole, chance.randrange(whole.end), chance) for _ in range(chance.randint(1, 4))]


def flipped_block(whole: Whole, chance: random.Random) -> list[Change]:
    places = (chance.randrange(whole.end, len(whole.content)) for _ in range(chance.randint(1, 9)))
    return [_flip(whole, at, chance) for at in places]


def _flip(whole: Whole, at: int, chance: random.Random) -> Change:
    bit = chance.randrange(8)
    return Change(at, 1, bytes([whole.content[at] ^ 1 << bit]), f"bit {bit} of byte {at} flips")


def cut(whole: Whole, chance: random.Random) -> list[Change]:
    at = chance.randrange(*((8, whole.end) if chance.random() < 0.5 else (8, len(whole.content))))
    return [Change(at, len(whole.content) - at, b"", f"ends after {at} bytes")]


def swapped(whole: Whole, chance: random.Random) -> list[Change]:
    kind = chance.choice(["length", "type", "dimension", "form", "offset", "value"])
    one, other = (whole.choose(chance, kind) for _ in range(2))
    size, told = (
        min(one.size, other.size),
        f"{kind}s of {one.owner} and {other.owner} change places",
    )
    both = (whole.content[each.at : each.at + size] for each in (other, one))
    return [
        Change(each.at, size, found, told) for each, found in zip((one, other), both, strict=True)
    ]


def at_the_edge(whole: Whole, chance: random.Random) -> list[Change]:
    kinds = ("length", "count", "rank", "dimension", "offset", "value", "value", "value")
    field = whole.choose(chance, *kinds)
    usual = int.from_bytes(whole.content[field.at : field.at + field.size], "little")
    edges = (*EDGES, usual + 1, usual - 1, 2 * usual, usual ^ 1 << 63)
    return [_number(field, chance.choice(edges) % (1 << 8 * field.size))]


def other_float(whole: Whole, chance: random.Random) -> list[Change]:
    field, number = whole.choose(chance, "float"), chance.choice(FLOATS)
    form = "<f" if field.size == 4 else "<d"
    return [_written(field, struct.pack(form, number), f"becomes {number}")]


def other_kind(whole: Whole, chance: random.Random) -> list[Change]:
    return [_number(whole.choose(chance, "type", "form"), chance.choice([*range(45), 1 << 31]))]


def other_text(whole: Whole, chance: random.Random) -> list[Change]:
    field = whole.choose(chance, "text")
    return [_written(field, chance.randbytes(field.size), "becomes random bytes")]


def grown_text(whole: Whole, chance: random.Random) -> list[Change]:
    """A text that is long, and whose length says so: the header stays readable."""
    tokens = whole.fields["text"]["tokenizer.ggml.tokens"]
    field = chance.choice([whole.choose(chance, "text"), chance.choice(tokens)])
    more = chance.choice([UNIT, 64 * UNIT, LONG_TEXT])
    longer = (whole.content[field.at : field.at + field.size] + b"a" * more)[-field.size - more :]
    length = struct.pack("<Q", field.size + more)
    told = f"the text of {field.owner} grows by {more}"
    return [Change(field.at - 8, 8 + field.size, length + longer, told)]


def without_a_part(whole: Whole, chance: random.Random) -> list[Change]:
    at = chance.randrange(24, whole.end)
    size = chance.choice([1, 4, 8, UNIT, 8 * UNIT])
    return [Change(at, size, b"", f"{size} bytes from {at} are gone")]


def random_blocks(whole: Whole, chance: random.Random) -> list[Change]:
    at = chance.randrange(whole.end, len(whole.content))
    size = min(chance.choice([2, UNIT, 4096, 1 << 20]), len(whole.content) - at)
    return [Change(at, size, chance.randbytes(size), f"{size} bytes from {at} are random")]


def _number(field: Field, number: int) -> Change:
    number %= 1 << 8 * field.size
    return _written(field, number.to_bytes(field.size, "little"), f"becomes {number}")


def _written(field: Field, content: bytes, told: str) -> Change:
    return Change(field.at, field.size, content, f"{field.kind} of {field.owner} {told}")


WAYS: tuple[Way, ...] = (
    *(flipped_header, flipped_block, cut, swapped, at_the_edge, at_the_edge, at_the_edge),
    *(other_float, other_kind, other_text, grown_text, without_a_part, random_blocks),
)


def mutate(wholes: Sequence[Whole], seed: int) -> tuple[bytes, str]:
    """The damaged file of a seed, and what is damaged.

    Files take turns; most have one damage, some two.
    """
    number, chance = seed % len(wholes), random.Random(seed)
    whole = wholes[number]
    changes = list[Change]()
    for _ in range(chance.choice([1, 1, 1, 2])):
        changes += chance.choice(WAYS)(whole, chance)
    told = "; ".join(dict.fromkeys(each.told for each in changes))
    return apply(whole.content, changes), f"file {number}: {told}"


def apply(content: bytes, changes: Sequence[Change]) -> bytes:
    """The bytes after changes; of two that overlap, the later one is left out."""
    ordered = sorted(changes, key=lambda each: each.at)
    apart = [*ordered[:1], *(b for a, b in pairwise(ordered) if a.at + a.size <= b.at)]
    for each in reversed(apart):
        content = content[: each.at] + each.bytes + content[each.at + each.size :]
    return content
