"""Blocks in which texts begin alike are read once, and nothing is read twice or left out."""

import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from draftwood.native.compiler import FLAGS, SOURCES, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PROGRAM = Path(__file__).with_name("plan.cpp")
PLACES, BLOCK = 32, 256  # of the cache and of visibility.h
ALL_BLOCKS = -1
FOLDER = TemporaryDirectory()  # removed when the process ends
PREFIX = list(range(1000, 1000 + 3 * BLOCK // PLACES))  # three blocks that texts share


@dataclass(frozen=True)
class Text:
    """New tokens behind a text, and the blocks of the cache that it lies in."""

    slot: int
    start: int
    count: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Groups as (slot, first row, rows) and items as (first group, last group, block)."""

    groups: list[tuple[int, int, int]]
    items: list[tuple[int, int, int]]
    kept: int


def text(slot: int, shared: Sequence[int], own: int, count: int = 1) -> Text:
    """Text of so many own tokens behind shared blocks, and ``count`` new ones."""
    start = len(shared) * PLACES + own
    missing = -(-(start + count) // PLACES) - len(shared)
    return Text(slot, start, count, (*shared, *range(10_000 * slot, 10_000 * slot + missing)))


@cache
def program() -> Path:
    path = Path(FOLDER.name) / "plan"
    command = [compiler(), *FLAGS, "-O1", "-w", f"-I{SOURCES}", PROGRAM, "-o", path]
    subprocess.run([str(part) for part in command], check=True)
    return path


def plan(texts: Sequence[Text], threads: int = 2, heads: int = 3, window: int = 0) -> Plan:
    numbers: list[int] = [threads, heads, 3, window, len(texts)]
    for each in texts:
        numbers += each.slot, each.start, each.count, len(each.blocks), *each.blocks
    said = subprocess.run(
        [program()], input=" ".join(map(str, numbers)), capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split() for line in said.splitlines()]
    found = {
        kind: [tuple(map(int, rest)) for word, *rest in lines if word == kind]
        for kind in ("group", "item", "kept")
    }
    return Plan(found["group"], found["item"], found["kept"][0][0])  # type: ignore[arg-type]


def shared_items(found: Plan) -> list[tuple[int, int, int]]:
    return [item for item in found.items if item[1] - item[0] > 1]


def blocks_of(found: Plan, texts: Sequence[Text], window: int) -> list[range]:
    """Blocks with something that a row of each group sees."""
    by_slot = {each.slot: each for each in texts}
    firsts: dict[int, int] = {}
    made = []
    for slot, first, rows in found.groups:
        own = by_slot[slot]
        before = own.start + first - firsts.setdefault(slot, first)  # of the group's first row
        hidden = max(0, before + 1 - window) if window else 0
        made.append(range(hidden // BLOCK, (before + rows - 1) // BLOCK + 1))
    return made


def test_a_block_that_texts_share_is_one_item() -> None:
    found = plan([text(slot, PREFIX, own=40) for slot in range(1, 17)])
    assert shared_items(found) == [(0, 16, block) for block in range(3)]
    assert Counter(block for _, _, block in found.items) == {0: 1, 1: 1, 2: 1, 3: 16}


def test_texts_that_only_say_the_same_share_nothing() -> None:
    own = [text(slot, range(100 * slot, 100 * slot + len(PREFIX)), own=40) for slot in range(1, 17)]
    assert shared_items(plan(own)) == []


def test_a_block_that_differs_in_its_last_places_is_read_by_each() -> None:
    texts = [text(slot, [*PREFIX[:-1], slot], own=40) for slot in (1, 2)]
    assert shared_items(plan(texts)) == [(0, 2, 0), (0, 2, 1)]


def test_no_item_has_more_rows_than_scores_that_stay_cached() -> None:
    found = plan([text(slot, PREFIX, own=5, count=4) for slot in range(1, 17)])
    rows = [sum(g[2] for g in found.groups[first:last]) for first, last, _ in shared_items(found)]
    assert rows
    assert max(rows) <= 64 // 3


def test_the_parts_of_one_text_stay_apart() -> None:
    found = plan([text(1, PREFIX, own=5, count=100), text(2, PREFIX, own=5, count=100)])
    assert len(found.groups) > 2
    assert shared_items(found) == []


def test_what_a_window_hides_is_not_read() -> None:
    texts = [text(1, PREFIX, own=0), text(2, PREFIX, own=200), text(3, PREFIX, own=290)]
    found = plan(texts, window=BLOCK)
    assert shared_items(found) == [(0, 2, 2)]


@pytest.mark.parametrize("seed", range(40))
def test_each_row_meets_each_of_its_blocks_once(seed: int) -> None:
    chance = random.Random(seed)
    texts = [
        text(
            slot,
            [*PREFIX[: chance.choice((0, 7, 8, 16, 24))]],
            own=chance.randrange(600),
            count=chance.choice((1, 1, 3, 8, 30)),
        )
        for slot in range(1, chance.randrange(2, 12))
    ]
    window = chance.choice((0, 0, 100, BLOCK + 1))
    found = plan(texts, chance.choice((1, 2, 16)), chance.choice((1, 3, 8)), window)
    own = blocks_of(found, texts, window)
    met: Counter[tuple[int, int]] = Counter()
    kept = 0
    for first, last, block in found.items:
        for group in range(first, last):
            met.update((group, each) for each in (own[group] if block == ALL_BLOCKS else (block,)))
            kept += 0 if block == ALL_BLOCKS else found.groups[group][2]
    assert met == {(group, block): 1 for group, blocks in enumerate(own) for block in blocks}
    assert kept == found.kept
    by_slot = {each.slot: each for each in texts}
    for first, last, block in shared_items(found):
        places = slice(block * BLOCK // PLACES, (block + 1) * BLOCK // PLACES)
        slots = [slot for slot, _, _ in found.groups[first:last]]
        assert len(set(slots)) == len(slots)
        assert len({by_slot[slot].blocks[places] for slot in slots}) == 1
