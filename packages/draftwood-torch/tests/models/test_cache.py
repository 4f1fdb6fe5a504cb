"""The pool of slots by itself, and what Transformers sees of it."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood.models.cache.places import CacheSlice
from draftwood.testing import tiny_llama
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.pool import CachePool, LayerShape
from draftwood_torch.models.run_cache import RunCache
from draftwood_torch.models.transformers import TransformersModel
from families import FAMILIES, random_model, recorded, some_tree

# keys unlike values
SHAPES = [LayerShape((2, 4), (2, 4)), LayerShape((2, 6), (2, 4)), LayerShape((2, 6), (1, 3))]
CPU = torch.device("cpu")


class Owner:
    """Whom a slot belongs to."""


def pool_of(slots: int, capacity: int) -> CachePool:
    pool = CachePool(SHAPES, torch.float32, CPU)
    owners = [Owner() for _ in range(slots)]  # gone at the end of this function, their slots free
    for owner in owners:
        pool.acquire(owner)
    pool.reserve(capacity)
    return pool


def fill(pool: CachePool) -> list[Tensor]:
    """Every tensor of the pool, with numbers in it that differ everywhere."""
    torch.manual_seed(0)
    tensors = [tensor for index in range(len(SHAPES)) for tensor in pool.layer(index)]
    for tensor in tensors:
        tensor.copy_(torch.randn(tensor.shape))
    return tensors


def copies(pool: CachePool) -> list[Tensor]:
    return [tensor.clone() for index in range(len(SHAPES)) for tensor in pool.layer(index)]


def test_layers_have_their_own_shapes_and_room() -> None:
    pool = pool_of(3, 10)
    for index, shape in enumerate(SHAPES):
        keys, values = pool.layer(index)
        assert keys.shape == (pool.slots, pool.capacity, *shape.key)
        assert values.shape == (pool.slots, pool.capacity, *shape.value)
    tensors = fill(pool)  # were two of them the same memory, the later would show in the earlier
    torch.manual_seed(0)
    for tensor in tensors:
        assert torch.equal(tensor, torch.randn(tensor.shape))


def test_slots_double_and_come_back() -> None:
    pool = CachePool(SHAPES, torch.float32, CPU)
    owners = [Owner() for _ in range(9)]
    assert [pool.acquire(owner) for owner in owners[:5]] == [0, 1, 2, 3, 4]
    assert pool.slots == 8
    pool.release(owners[2])
    pool.release(owners[2])
    assert pool.acquire(owners[5]) == 2
    assert [pool.acquire(owner) for owner in owners[6:]] == [5, 6, 7]
    assert pool.slots == 8
    owners.clear()
    assert not pool.used


def test_nothing_of_an_owner_is_left_to_the_next() -> None:
    pool, first = CachePool(SHAPES, torch.float32, CPU), Owner()
    slot = pool.acquire(first)
    pool.cover([CacheSlice(slot, 0, 5)])
    for tensor in (tensor for index in range(len(SHAPES)) for tensor in pool.layer(index)):
        tensor[slot, :5] = torch.nan
    pool.release(first)
    other = Owner()
    assert pool.acquire(other) == slot
    pool.cover([CacheSlice(slot, 0, 2)])
    assert all(bool(tensor.isfinite().all()) for tensor in copies(pool))
    pool.release(other)


def test_a_copy_leaves_nothing_of_the_owner_before_behind_it() -> None:
    pool, owners = CachePool(SHAPES, torch.float32, CPU), [Owner() for _ in range(3)]
    source, slot = (pool.acquire(owner) for owner in owners[:2])
    pool.cover([CacheSlice(source, 0, 2), CacheSlice(slot, 0, 5)])
    for tensor in (tensor for index in range(len(SHAPES)) for tensor in pool.layer(index)):
        tensor[slot, :5] = torch.nan
    pool.release(owners[1])
    assert pool.acquire(owners[2]) == slot
    pool.copy(source, slot, 2)
    assert all(bool(tensor.isfinite().all()) for tensor in copies(pool))


@pytest.mark.parametrize("kind", [LeanModel, recorded])
def test_padded_rows_are_cleared_too(kind: Callable[[Any], LeanModel]) -> None:
    """A text's NaN in rows that only fill a pass up reaches no other text."""
    hf = random_model(*FAMILIES["llama"])
    with torch.no_grad():
        hf.get_input_embeddings().weight[5] = torch.inf
    model = kind(hf)
    model.padded = True
    wanted = model.start().extend([1, 2, 3]).rows
    broken = model.start()
    broken.extend([5] * 5)
    broken.close()
    found = model.start().extend([1, 2, 3])
    assert np.isfinite(found.rows).all()
    assert np.array_equal(found.rows, wanted)


@pytest.mark.parametrize(("asked", "capacity"), [(1, 128), (128, 128), (129, 256), (1000, 1000)])
def test_capacity_at_least_doubles(asked: int, capacity: int) -> None:
    pool = pool_of(1, 1)
    pool.reserve(asked)
    assert pool.capacity == capacity
    pool.reserve(5)
    assert pool.capacity == capacity


def test_growing_keeps_what_is_there_and_fills_with_zeros() -> None:
    pool = pool_of(2, 128)
    fill(pool)
    before = copies(pool)
    owners = [Owner() for _ in range(3)]
    assert [pool.acquire(owner) for owner in owners] == [0, 1, 2]
    pool.reserve(129)
    for old, new in zip(before, copies(pool), strict=True):
        assert torch.equal(new[:2, :128], old)
        assert not new[2:].any()
        assert not new[:, 128:].any()


@pytest.mark.parametrize("path", [[], [0], [0, 1, 2], [0, 2, 3, 7], [1], [3, 5, 9], [0, 4, 1]])
def test_keeping_a_path_moves_it_and_nothing_before_or_beside_it(path: list[int]) -> None:
    pool = pool_of(4, 128)
    fill(pool)
    before = copies(pool)
    pool.keep(slot=2, start=20, path=path)
    for old, new in zip(before, copies(pool), strict=True):
        assert torch.equal(new[2, 20 : 20 + len(path)], old[2][[20 + node for node in path]])
        assert torch.equal(new[2, :20], old[2, :20])
        assert torch.equal(new[[0, 1, 3]], old[[0, 1, 3]])


@pytest.mark.parametrize("slots", [[0], [1, 2, 3], [1, 3, 2], [3, 0, 2], [2, 1]])
def test_a_run_writes_to_its_places_and_reads_rows_in_its_order(slots: list[int]) -> None:
    pool = pool_of(4, 128)
    fill(pool)
    before = copies(pool)
    chance = random.Random(0)
    places = [CacheSlice(slot, chance.randrange(30), chance.randrange(1, 6)) for slot in slots]
    longest = max(place.count for place in places)
    cache = RunCache(pool, places)
    width = max(place.start + place.count for place in places)
    assert cache.get_mask_sizes(longest) == (width, 0)
    assert cache.get_seq_length() == max(place.start for place in places)
    for index, shape in enumerate(SHAPES):
        new_keys = torch.randn(len(places), shape.key[0], longest, shape.key[1])
        new_values = torch.randn(len(places), shape.value[0], longest, shape.value[1])
        for got, new, old in zip(
            cache.update(new_keys, new_values, index),
            (new_keys, new_values),
            before[2 * index :],
            strict=False,
        ):
            assert got.shape[2] == width
            for row, place in enumerate(places):
                end = place.start + place.count
                assert torch.equal(got[row, :, place.start : end], new[row, :, : place.count])
                assert torch.equal(
                    got[row, :, : place.start], old[place.slot, : place.start].transpose(0, 1)
                )
                assert torch.equal(
                    got[row, :, end:], old[place.slot, end:width].transpose(0, 1)
                )  # padding was not written


def no_memory_above(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks of more places than this fail as PyTorch does on a CPU."""
    empty = torch.empty

    def short(*shape: int, **options: object) -> Tensor:
        if len(shape) > 2 and shape[1] * shape[2] > limit:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
                " much"
            )
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", short)


def test_where_memory_is_short_it_grows_by_no_more_than_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of(1, 128)
    no_memory_above(200, monkeypatch)
    pool.reserve(150)
    assert pool.capacity == 150


def test_without_memory_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(2, 128)
    fill(pool)
    before = copies(pool)
    no_memory_above(256, monkeypatch)
    with pytest.raises(
        MemoryError, match="no memory for a cache of 2 sequences of 200 tokens; shorten the prompt"
    ):
        pool.reserve(200)
    owners = [Owner() for _ in range(3)]
    assert [pool.acquire(owner) for owner in owners[:2]] == [0, 1]
    with pytest.raises(MemoryError, match="3 sequences"):
        pool.acquire(owners[2])
    assert pool.used == {0, 1}
    assert (pool.slots, pool.capacity) == (2, 128)
    for old, new in zip(before, copies(pool), strict=True):
        assert torch.equal(old, new)


def test_other_failures_are_not_called_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("the device is gone")

    pool = pool_of(1, 128)
    monkeypatch.setattr(torch, "empty", broken)
    with pytest.raises(RuntimeError, match="gone"):
        pool.reserve(500)


def used_for(pool: CachePool, places: int, slots: int = 1) -> None:
    """Requests of so many places, one beside the other."""
    owners = [Owner() for _ in range(slots)]
    taken = [pool.acquire(owner) for owner in owners]
    for end in range(100, places + 1, 100):
        pool.cover([CacheSlice(slot, end - 100, 100) for slot in taken])
    for owner in owners:
        pool.release(owner)


@pytest.mark.parametrize(("places", "slots"), [(8000, 1), (200, 64)])
def test_the_memory_of_an_unusual_request_goes_back_when_it_ends(places: int, slots: int) -> None:
    pool = pool_of(0, 0)
    used_for(pool, 300)
    usual = pool.bytes
    assert usual > 0
    used_for(pool, places, slots)
    assert pool.bytes == 0
    used_for(pool, 300)
    assert pool.bytes == usual


@pytest.mark.parametrize(("places", "slots"), [(300, 1), (2100, 1), (8000, 1), (600, 5), (200, 64)])
def test_equal_requests_find_their_memory_again(places: int, slots: int) -> None:
    pool, moves = pool_of(0, 0), []
    used_for(pool, places, slots)
    used_for(pool, places, slots)
    pool.when_moved = lambda: moves.append(pool.bytes)
    for _ in range(40):
        used_for(pool, places, slots)
    assert not moves


def test_a_pool_that_is_always_in_use_shrinks_around_those_who_use_it() -> None:
    pool, staying = pool_of(0, 0), Owner()
    slot = pool.acquire(staying)
    pool.cover([CacheSlice(slot, 0, 120)])
    fill(pool)
    before = [
        tensor[slot, :120].clone() for index in range(len(SHAPES)) for tensor in pool.layer(index)
    ]
    used_for(pool, 9000, 3)
    large = pool.bytes
    for _ in range(200):
        used_for(pool, 200)
    assert pool.bytes <= large / 20
    assert pool.used == {slot}
    for old, (index, half) in zip(
        before, ((i, h) for i in range(len(SHAPES)) for h in range(2)), strict=True
    ):
        assert torch.equal(pool.layer(index)[half][slot, :120], old)


def test_giving_back_never_waits() -> None:
    pool, owners = pool_of(0, 0), [Owner(), Owner()]
    for owner in owners:
        pool.acquire(owner)
    pool.reserve(5000)
    with pool.lock:  # as if the garbage collector closed a session in the midst of a run
        pool.release(owners[0])
        assert pool.used == {1}
        assert pool.capacity == 5000
    pool.release(owners[1])
    assert pool.bytes == 0


@pytest.mark.parametrize("kind", [TransformersModel, LeanModel, recorded])
def test_what_begins_in_inference_mode_goes_on_outside(kind: Callable[[Any], Any]) -> None:
    model, tree = kind(tiny_llama(0, layers=2)), some_tree(4)
    with torch.inference_mode():
        session = model.start()
        session.extend([5, 9, 7])
        first = torch.clone(session.forward(tree).logits)
    torch.testing.assert_close(session.forward(tree).logits, first)
