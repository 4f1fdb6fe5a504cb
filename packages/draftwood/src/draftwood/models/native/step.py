"""Steps of texts on a ``NativeModel``, all of a forward pass in one call of the library."""

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_int64, pointer
from typing import Any

import numpy as np

from draftwood.arrays import address_of
from draftwood.models.cache.blocks import BlockPool
from draftwood.models.cache.places import PLACES
from draftwood.models.model import ModelOutput
from draftwood.models.parts import PackedInput, PackedStep
from draftwood.models.requirements import beyond
from draftwood.native import structures
from draftwood.native.library import integers, library
from draftwood.native.step import StepCaller

NO_LOGITS = np.empty((0, 0), np.float32)
"""A step draws by itself."""


def run_steps(
    decoder: structures.CDecoder,
    pool: BlockPool,
    beside: structures.CForwardInput,
    steps: Sequence[PackedStep],
    rows: int,
    states: dict[int, np.ndarray],
    threads: int,
) -> list[ModelOutput]:
    """A forward pass over steps, and over what is run beside them; or the passes of steps in a row.

    Args:
        decoder: that runs.
        pool: its cache.
        rows: of these others.
        states: [kept_states rows dim] of all rows, by layer, the others' first.

    Raises:
        ValueError: for a token beyond the vocabulary.
    """
    callers = [part.step.caller for part in steps]
    kept = next((len(each) for each in states.values()), 1)
    if _is_row(steps, rows):
        count = _make_row(decoder, pool, beside, steps, threads, kept)
    else:
        count = _make_side_by_side(decoder, pool, beside, steps, threads)
    if not count:
        raise ValueError(beyond(_all_tokens(beside, rows, callers), decoder.vocabulary))
    firsts = [rows] * count  # where the next text's states begin, by step
    made: list[ModelOutput] = []
    for part, caller in zip(steps, callers, strict=True):
        results = tuple(caller.result(decoder.vocabulary, number) for number in range(count))
        hidden: list[dict[int, np.ndarray]] = []
        for number, step in enumerate(results if count <= kept else ()):
            own = slice(firsts[number], firsts[number] + len(step.tokens))
            firsts[number] = own.stop
            hidden.append({layer: states[layer][number, own] for layer in part.hidden})
        single = hidden[0] if count == 1 else {}
        made.append(ModelOutput(NO_LOGITS, single, results, tuple(hidden) if count > 1 else ()))
    return made


def kept_states(steps: Sequence[PackedStep]) -> int:
    """Count the steps in a row, with nothing beside them, whose hidden states are kept; 1 for a
    single step, and where only those of one that is alone are wanted.
    """
    limits = [part.step.caller.limits for part in steps]
    if not _is_row(steps, 0) or not any(each.keeps_states for each in limits):
        return 1
    return min(each.steps for each in limits)


def _is_row(steps: Sequence[PackedStep], rows: int) -> bool:
    """True where texts make several steps in a row, with nothing beside them."""
    return not rows and all(part.step.caller.limits.steps > 1 for part in steps)


def _make_side_by_side(
    decoder: structures.CDecoder,
    pool: BlockPool,
    beside: structures.CForwardInput,
    steps: Sequence[PackedStep],
    threads: int,
) -> int:
    """Make a step of each text in one pass; counts the steps, 0 where a token is unknown."""
    make, places = library().draftwood_steps, beginnings(pool, steps)
    return int(make(decoder, beside, _addresses(steps), places, len(steps), threads) < 0)


def _make_row(
    decoder: structures.CDecoder,
    pool: BlockPool,
    beside: structures.CForwardInput,
    steps: Sequence[PackedStep],
    threads: int,
    kept: int,
) -> int:
    """Make steps of all texts in a row; counts them, 0 where a token is unknown."""
    runs, places = (c_int64 * len(steps))(), beginnings(pool, steps)
    room = sum(part.rows for part in steps) if kept > 1 else 0
    for number, part in enumerate(steps):
        run = part.step.caller.run
        run.shape, run.states, runs[number] = pointer(pool.shape), room, addressof(run)
    make = library().draftwood_step_run
    return int(make(decoder, beside, _addresses(steps), places, runs, len(steps), threads))


def _addresses(steps: Sequence[PackedStep]) -> "ctypes.Array[c_int64]":
    return (c_int64 * len(steps))(*(part.step.caller.address for part in steps))


def _all_tokens(
    beside: structures.CForwardInput, rows: int, callers: Sequence[StepCaller]
) -> list[int]:
    before = (c_int64 * rows).from_address(beside.tokens) if rows else ()
    return [*before, *(token for caller in callers for token in caller.tokens)]


def sequences(pool: BlockPool, parts: Sequence[PackedInput]) -> tuple[Any, list[Any]]:
    """Describe trees and prompts as the library reads them, ``Sequence`` of visibility.h.

    Returns:
        Numbers, and tables of blocks and positions that must stay in memory as long.
    """
    numbers, tables = list[int](), list[Any]()
    for part in parts:
        place, unread = part.place, len(part.unread)
        address = pool.address_of(place.slot)
        if unread:
            tables.append(_without(pool.blocks_of(place.slot), part.unread))
            address = ctypes.addressof(tables[-1])
        before = part.before - unread
        numbers += place.slot, place.start - unread, place.count, before, part.wanted, address
        if part.has_own_mask:
            tables.append(np.ascontiguousarray(part.tree_positions, np.int64))
        numbers += address_of(tables[-1]) if part.has_own_mask else 0, part.is_prompt
    return integers(numbers), tables


def _without(blocks: list[int], unread: range) -> Any:
    """A table without the blocks that a window leaves out.

    The text is read as if these were not there: its positions are in the keys.
    """
    return integers([*blocks[: unread.start // PLACES], *blocks[unread.stop // PLACES :]])


def beginnings(pool: BlockPool, steps: Sequence[PackedStep]) -> Any:
    """Describe where texts go on; the library says how many nodes they have."""
    numbers: list[int] = []
    for part in steps:
        slot, start = part.place.slot, part.place.start
        numbers += (slot, start, 0, start, 0, pool.address_of(slot), 0, 0)
    return integers(numbers)
