"""A cache in blocks: shared, copied before they are written to, limited, and given back."""

import gc
import random
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from test_attention import CHAIN, TREE, hf_model, some, tokens_of
from torch import Tensor

from draftwood.models.cache.places import PLACES
from draftwood.models.model import CacheFullError, ForwardInput, PromptInput
from draftwood.models.native import NativeModel, has_int8
from draftwood.models.native.prefixes import Prefixes
from draftwood.models.requirements import BlockCache
from draftwood.models.session import PooledSession
from draftwood.native import library

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"products": "bfloat16", "dtype": "bfloat16"},
    "int8": {"products": "int8"},
    "int4": {"products": "int4"},
    "int8 cache": {"products": "int8", "dtype": "bfloat16", "cache": "int8"},
}
OF_FORMATS = [pytest.param(name, marks=[needs_int8] if "int" in name else []) for name in FORMATS]


@cache
def shared_model(name: str) -> NativeModel:
    return NativeModel(hf_model(64, window=40), **FORMATS[name])


def new_model(name: str = "float32") -> NativeModel:
    return NativeModel(hf_model(24, window=None), **FORMATS[name])


def extend(session: PooledSession, tokens: Sequence[int], chunk: int) -> Tensor:
    """Logits of the last token."""
    for start in range(0, len(tokens), chunk):
        output = session.extend(tokens[start : start + chunk], keep="last")
    return output.logits


def stored(session: PooledSession) -> list[np.ndarray]:
    pairs = session.model.pool.places(session.slot, 0, session.length)
    return [numbers for pair in pairs for numbers in pair]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(here, there) for here, there in zip(one, other, strict=True))


@pytest.mark.parametrize("chunk", [1, 7, 32, 512])
@pytest.mark.parametrize("name", OF_FORMATS)
def test_keys_values_and_logits_are_the_same_cached_or_not(name: str, chunk: int) -> None:
    model, prompt, other = shared_model(name), some(300, seed=1), [*some(200, seed=1), *some(60)]
    plain, first = model.start(), model.start()
    wanted, prefixes = extend(plain, other, 260), Prefixes(model)
    extend(first, prompt, chunk)
    prefixes.remember(first, prompt)
    first.close()
    cached, reused = prefixes.start(other)
    assert reused == 200
    assert torch.equal(extend(cached, other[reused:], chunk), wanted)
    assert same(stored(cached), stored(plain))
    assert torch.equal(cached.forward(TREE).logits, plain.forward(TREE).logits)
    table = model.pool._tables[cached.slot].addresses  # negative control: two blocks swapped
    table[0], table[1] = table[1], table[0]
    assert not same(stored(cached), stored(plain))
    moved = table[1]
    table[1] = table[0]  # one of them twice: places that are only swapped add up to nearly the same
    assert not torch.equal(cached.forward(TREE).logits, plain.forward(TREE).logits)
    table[1] = moved
    prefixes.clear()
    for session in (cached, plain):
        session.close()
    assert model.pool.used_blocks == 0
    assert not model.pool._refs


def test_the_last_token_of_a_prompt_always_runs() -> None:
    model = new_model()
    prefixes, session, prompt = Prefixes(model), model.start(), some(2 * PLACES)
    session.extend(prompt)
    prefixes.remember(session, prompt)
    assert prefixes.start(prompt)[1] == 2 * PLACES - 1
    assert prefixes.start([*prompt, 1])[1] == 2 * PLACES
    assert prefixes.start(prompt[: PLACES - 1])[1] == PLACES - 2
    assert prefixes.start(prompt[:1])[1] == 0
    other = 49 if prompt[PLACES - 1] != 49 else 48
    assert prefixes.start([*prompt[: PLACES - 1], other, 1, 1])[1] == PLACES - 1


def test_salts_keep_texts_apart() -> None:
    model = new_model()
    prefixes, session, prompt = Prefixes(model), model.start(), some(100)
    session.extend(prompt)
    prefixes.remember(session, prompt, "one")
    assert prefixes.start(prompt, "other")[1] == 0
    assert prefixes.start(prompt)[1] == 0
    assert prefixes.start(prompt, "one")[1] == 99
    with pytest.raises(ValueError, match="at least 101 tokens"):
        prefixes.remember(session, [*prompt, 1])


def test_what_is_kept_of_a_block_stays_when_its_text_goes_on() -> None:
    """Several texts go on from one that ends within a block, the first of them among them."""
    model, text = new_model(), some(PLACES + 13)
    prefixes, origin = Prefixes(model), model.start()
    origin.extend(text)
    prefixes.remember(origin, text)
    origin.extend(some(9, seed=1))
    sessions = [prefixes.start([*text, 7]) for _ in range(2)]
    for seed, (session, reused) in enumerate(sessions, start=2):
        assert reused == len(text)
        session.extend(some(9, seed))
    for seed, session in enumerate([origin, *(each for each, _ in sessions)], start=1):
        alone = model.start()
        alone.extend([*text, *some(9, seed)])
        assert same(stored(session), stored(alone))
        assert torch.equal(session.forward(TREE).logits, alone.forward(TREE).logits)


def test_the_longer_of_two_ends_stays() -> None:
    model, text = new_model(), some(PLACES + 20)
    prefixes, session = Prefixes(model), model.start()
    for length in (PLACES + 5, PLACES + 12, PLACES + 5, PLACES + 20):
        if length > session.length:
            session.extend(text[session.length : length])
        prefixes.remember(session, text[:length])
    assert prefixes.start([*text, 1])[1] == len(text)
    session.close()
    assert len(prefixes) == len(model.pool._refs) == 2
    prefixes.clear()
    assert not model.pool._refs


def test_an_end_is_not_copied_where_that_would_take_the_last_block() -> None:
    model, text = new_model(), some(2 * PLACES + 9)
    prefixes, session = Prefixes(model), model.start()
    session.extend(text)
    prefixes.remember(session, text)
    session.close()
    found = []
    for limit in (3, 4):
        model.pool.limit = limit * model.pool.block_bytes
        again, reused = prefixes.start([*text, 1, 2])
        found.append(reused)
        again.extend([*text, 1, 2][reused:])
        again.close()
    assert found == [2 * PLACES, len(text)]


def test_what_was_not_asked_for_longest_goes_first() -> None:
    model = new_model()
    model.pool.limit = 8 * model.pool.block_bytes
    prefixes = Prefixes(model)
    texts = [some(2 * PLACES, seed) for seed in range(3)]
    for text in texts:
        session = model.start()
        session.extend(text)
        prefixes.remember(session, text)
        session.close()
    assert (len(prefixes), model.pool.used_blocks, model.pool.free_blocks) == (6, 0, 8)
    prefixes.start([*texts[0], 1])[0].close()
    large = model.start()
    large.extend(some(4 * PLACES))
    assert [prefixes.start([*text, 1])[1] // PLACES for text in texts] == [2, 0, 2]
    large.close()


def test_salts_are_forgotten_with_their_blocks() -> None:
    model = new_model()
    model.pool.limit = 8 * model.pool.block_bytes
    prefixes, text = Prefixes(model), some(PLACES + 5)
    for number in range(40):
        assert prefixes.shared_blocks(text, str(number)) == 0
        for length in (PLACES // 2, len(text)):  # the first block holds more the second time
            session = model.start()
            session.extend(text[:length])
            prefixes.remember(session, text[:length], str(number))
            session.close()
        again, known = prefixes.start(text, str(number))
        again.close()
        assert known == len(text) - 1
    salts = {before for before, _ in prefixes._kept if isinstance(before, str)}
    assert salts == {before for before, _ in prefixes._behind if isinstance(before, str)}
    assert 0 < len(salts) <= 8
    prefixes.evict(8)
    assert not prefixes._kept
    assert not prefixes._behind


def test_a_store_behind_which_another_came_keeps_nothing_more() -> None:
    model = new_model()
    model.pool.limit = 8 * model.pool.block_bytes
    older, newer = Prefixes(model), Prefixes(model)
    for number in range(6):
        text = some(4 * PLACES, number)
        session, _ = older.start(text)
        session.extend(text)
        older.remember(session, text)
        session.close()
    assert len(older) == len(newer) == 0
    assert model.pool.free_blocks == 8


def test_a_new_store_takes_over_and_gives_back_what_an_earlier_one_kept() -> None:
    model = new_model()
    for seed in range(3):
        prefixes, session = Prefixes(model), model.start()
        assert not model.pool._refs
        session.extend(text := some(4 * PLACES, seed))
        prefixes.remember(session, text)
        session.close()
        assert len(prefixes) == len(model.pool._refs) == 4


def test_forks_write_to_copies() -> None:
    model, chance = new_model(), random.Random(0)
    origin, text = model.start(), some(3 * PLACES + 5)
    origin.extend(text)
    forks = [origin.fork() for _ in range(5)]
    assert model.pool.used_blocks == 4 + 5  # whole blocks are shared
    texts = [list(text) for _ in forks]
    for step in range(30):
        number = chance.randrange(len(forks))
        fork, own = forks[number], texts[number]
        if step % 3 == 0:
            count = min(chance.randrange(40), len(own) - 1)
            fork.rewind(count)
            kept_nodes = sorted(chance.sample(range(count), min(2, count)))
            taken = own[len(own) - count :]
            del own[len(own) - count :]
            if kept_nodes == list(range(len(kept_nodes))):
                fork.commit(kept_nodes)
                own += [taken[node] for node in kept_nodes]
        fork.forward(TREE)
        fork.commit(CHAIN[: 1 + step % 5])
        own += tokens_of(CHAIN[: 1 + step % 5])
    for session, own in zip([origin, *forks], [text, *texts], strict=True):
        alone = model.start()
        alone.extend(own)
        assert torch.equal(session.forward(TREE).logits, alone.forward(TREE).logits)


def test_texts_that_begin_with_the_same_blocks_are_neighbours() -> None:
    model = new_model()
    origins = [model.start() for _ in range(2)]
    for seed, origin in enumerate(origins):
        origin.extend(some(2 * PLACES, seed))
    forks = [origins[number % 2].fork() for number in range(6)]
    for number, fork in enumerate(forks):
        fork.extend(some(3, number))
    order = model.pool.beginning_alike([fork.slot for fork in forks])
    assert sorted(order) == list(range(6))
    assert [number % 2 for number in order] in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_a_path_that_moves_within_shared_blocks_leaves_the_other() -> None:
    model = new_model()
    origin = model.start()
    origin.extend(some(2 * PLACES))
    fork, before = origin.fork(), stored(origin)
    fork.rewind(40)
    fork.commit([0, 39])
    assert fork.length == 26
    assert same(stored(origin), before)
    with pytest.raises(ValueError, match="numbered from 0"):
        fork.rewind(3) or fork.commit([-1])


def test_a_part_of_a_text_can_be_forked() -> None:
    model, text = new_model(), some(100)
    origin, alone = model.start(), model.start()
    origin.extend(text)
    fork = origin.fork(length=50)
    alone.extend(text[:50])
    assert same(stored(fork), stored(alone))
    assert torch.equal(fork.extend([7]).logits, alone.extend([7]).logits)
    with pytest.raises(ValueError, match="cannot fork 101 of 100"):
        origin.fork(length=101)


def test_where_the_cache_is_full_nothing_is_written() -> None:
    model = new_model()
    pool = model.pool
    assert isinstance(pool, BlockCache)
    assert pool.free_blocks is None
    pool.limit = 5 * pool.block_bytes + 1
    sessions = [model.start() for _ in range(3)]
    for session in sessions[:2]:
        session.extend(some(40))
    assert (pool.used_blocks, pool.free_blocks) == (4, 1)
    assert [sessions[0].wants(24), sessions[0].wants(25), pool.blocks_for(33)] == [0, 1, 2]
    before = [stored(session) for session in sessions[:2]]
    inputs = [ForwardInput(sessions[0], TREE), PromptInput(sessions[2], some(40))]
    with pytest.raises(CacheFullError, match="needs 2 more blocks of 32 tokens"):
        model.forward(inputs)
    assert [session.length for session in sessions] == [40, 40, 0]
    assert (pool.used_blocks, pool.free_blocks) == (4, 1)
    assert all(same(stored(s), old) for s, old in zip(sessions[:2], before, strict=True))
    with pytest.raises(CacheFullError):
        sessions[0].fork().fork()
    gc.collect()
    sessions[1].close()
    model.forward(inputs)
    for session in sessions:
        session.close()
    assert (pool.used_blocks, pool.free_blocks, pool.used) == (0, 5, set())
    assert pool.bytes <= pool.limit


def test_the_memory_of_an_unusual_request_goes_back() -> None:
    model = new_model()
    for length in (300, 6000, 300, 300):
        session = model.start()
        for _ in range(length // 100):
            session.extend(some(100), keep="none")
        session.close()
    assert model.pool.bytes <= 128 * model.pool.block_bytes


def test_giving_back_never_waits_and_needs_no_close() -> None:
    model = new_model()
    sessions = [model.start(), model.start()]
    for session in sessions:
        session.extend(some(40))
    del session
    with model.pool.lock:  # as if the garbage collector came in the midst of a pass
        sessions.pop()
        gc.collect()
        assert len(model.pool.used) == 1
    assert model.pool.used_blocks == 2
    sessions[0].close()
    assert model.pool.used_blocks == 0


def test_adopted_keys_and_values_are_read_like_own_ones() -> None:
    model = shared_model("float32")
    origin, other = model.start(), model.start()
    origin.extend(some(70))
    pairs = model.pool.places(origin.slot, 0, 70)
    other.adopt([(keys.swapaxes(0, 1), values.swapaxes(0, 1)) for keys, values in pairs], 70)
    assert torch.equal(other.forward(TREE).logits, origin.forward(TREE).logits)
    for session in (origin, other):
        session.close()


def test_threads_share_blocks_and_each_keeps_its_text() -> None:
    model, text = new_model(), some(70)
    prefixes, session = Prefixes(model), model.start()
    session.extend(text)
    prefixes.remember(session, text)
    wanted, wrong = session.forward(TREE).logits, []

    def work(seed: int) -> None:
        for _ in range(5):
            own, reused = prefixes.start(text)
            own.extend(text[reused:])
            if not torch.equal(own.forward(TREE).logits, wanted):
                wrong.append(seed)
            own.fork().extend(some(20, seed))
            own.rewind(50)
            own.extend(some(50, seed))
            own.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(session.forward(TREE).logits, wanted)
    session.close()
    gc.collect()
    assert model.pool.used_blocks == 0
