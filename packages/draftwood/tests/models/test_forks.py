"""A fork and its origin write texts of their own, on every path."""

import random
from collections.abc import Callable

import pytest
import torch

from draftwood.models.cache.blocks import BlockPool
from draftwood.models.native import NativeModel, has_int8
from draftwood.models.session import PooledSession
from draftwood.tree import DraftTree
from draftwood_torch.models.pool import CachePool
from families import (
    TOLERANCE,
    AnyModel,
    assert_close,
    deepest_path,
    hf_model,
    model_of,
    some_tokens,
    some_tree,
)

needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
FAMILIES = (
    "llama",
    "mistral-window",
    "gemma3",
    "gpt-oss",
    "deepseek-v3",
    "llama/lean",
    "qwen2-window/lean",
    "llama/recorded",
    "mistral-window/recorded",
    "llama/native",
    "mistral-window/native",
    "gemma2/lean",
    "mixtral/lean",
    "cohere2/native",
    "qwen3-experts/native",
)
PATHS = [
    *FAMILIES,
    "llama/native in bfloat16",
    pytest.param("llama/native in int8", marks=needs_int8),
]


def model_on(path: str) -> AnyModel:
    family, _, products = path.partition(" in ")
    if products:
        return NativeModel(hf_model(family), products)  # type: ignore[arg-type]
    return model_of(family)


def layout(pool: CachePool | BlockPool) -> tuple[int, int]:
    """Layout that growing changes; blocks grow in number alone."""
    return (1, pool.bytes) if isinstance(pool, BlockPool) else (pool.slots, pool.capacity)


class Pair:
    """A session in a shared model, and one that ran the same text alone in a model of its own."""

    def __init__(self, path: str, shared: PooledSession, text: list[int]) -> None:
        self.path, self.shared, self.text = path, shared, list(text)
        self.alone = model_on(path).start()
        self.alone.extend(text)

    def fork(self) -> "Pair":
        return Pair(self.path, self.shared.fork(), self.text)

    def step(self, chance: random.Random) -> None:
        """Run a random tree and keep a path of it, or none."""
        tree = some_tree(chance.randrange(1, 12), chance.randrange(1000))
        both = self.shared, self.alone
        assert_close(*(session.forward(tree).logits for session in both))
        path = deepest_path(tree)[: chance.randrange(5)]
        for session in both:
            session.commit(path)
        self.text += [tree.token_list[node] for node in path]
        assert self.shared.length == self.alone.length == len(self.text)


@pytest.mark.parametrize("path", PATHS)
def test_forks_and_origins_write_texts_of_their_own(path: str) -> None:
    """Interleaved steps of an origin, its forks and a fork's fork, while slots and places grow."""
    chance, text = random.Random(len(path)), some_tokens(250, seed=1)
    model = model_on(path)
    origin = model.start()
    origin.extend(text)
    pairs = [Pair(path, origin, text)]
    layouts = {layout(model.pool)}
    for step in range(40):
        if step in (2, 3, 20):
            pairs.append(pairs[-1].fork())
        chance.choice(pairs).step(chance)
        layouts.add(layout(model.pool))
    assert len({tuple(pair.text) for pair in pairs}) == 4
    assert len(layouts) >= (2 if isinstance(model.pool, BlockPool) else 3)
    assert len({capacity for _, capacity in layouts}) >= 2


@pytest.mark.parametrize("path", PATHS)
def test_closing_either_leaves_the_other(path: str) -> None:
    chance, text = random.Random(0), some_tokens(12, seed=1)
    model = model_on(path)
    origin = model.start()
    origin.extend(text)
    first = Pair(path, origin, text)
    second, third = first.fork(), first.fork()
    second.shared.close()
    newcomer = model.start()  # writes to the slot that was closed
    newcomer.extend(some_tokens(20, seed=2))
    assert newcomer.slot == second.shared.slot
    for pair in (first, third):
        pair.step(chance)
    first.shared.close()
    other = model.start()
    other.extend(some_tokens(20, seed=3))
    assert other.slot == first.shared.slot
    third.step(chance)
    with pytest.raises(ValueError, match="fork was called on a session that is closed"):
        first.shared.fork()
    assert len(model.pool.used) == 3
    for session in (newcomer, other, third.shared):
        session.close()
    assert not model.pool.used


@pytest.mark.parametrize("path", PATHS)
def test_nodes_that_are_not_committed_stay_with_the_origin(path: str) -> None:
    text, tree = some_tokens(12, seed=1), some_tree(10, seed=2)
    model = model_on(path)
    session, alone = model.start(), model_on(path).start()
    for each in (session, alone):
        each.extend(text)
        each.forward(tree)
    fork = session.fork()
    assert fork.length == 12
    with pytest.raises(ValueError, match="no node of 3 comes after 2; run an earlier one"):
        session.forward(DraftTree.of([1, 2, 3], [-1, 0, 1]), 3)
    with pytest.raises(ValueError, match="nodes before 1 must be run first; 0 were run"):
        fork.forward(tree, first=1)
    with pytest.raises(ValueError, match="node 0 cannot be kept: only 0 nodes were run"):
        fork.commit([0])
    assert_close(fork.forward(tree).logits, alone.forward(tree).logits)
    fork.commit([])
    for each in (session, alone):  # whose own nodes are still there
        each.commit(deepest_path(tree))
    assert_close(session.extend([7]).logits, alone.extend([7]).logits)
    assert fork.length == 12


def test_tokens_that_were_taken_back_are_not_copied() -> None:
    session = model_of("llama").start()
    session.extend(some_tokens(12, seed=1))
    session.rewind(2)
    fork = session.fork()
    assert fork.length == 10
    with pytest.raises(ValueError, match="0 were run"):
        fork.forward(DraftTree.chain([1, 2, 3]), first=2)
    session.forward(DraftTree.chain([*some_tokens(12, seed=1)[10:], 3]), first=2)


def test_an_empty_session_has_an_empty_fork() -> None:
    model = model_of("llama/native")
    fork = model.start().fork()
    assert fork.length == 0
    assert_close(fork.extend([1, 2]).logits, model.start().extend([1, 2]).logits)


WRONG: dict[str, Callable[[PooledSession], PooledSession]] = {
    "another text": lambda session: _as_long(session.model.start(), session),  # type: ignore[arg-type]
    "one slot for both": lambda session: _in_slot_of(session.fork(), session),
}


def _as_long(session: PooledSession, other: PooledSession) -> PooledSession:
    session.extend([9] * other.length)
    return session


def _in_slot_of(session: PooledSession, other: PooledSession) -> PooledSession:
    session.slot = other.slot
    return session


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_fork_would_be_noticed(path: str, wrong: str) -> None:
    """Negative control: with another text, or in the slot of its origin, a fork is noticed."""
    session, alone = model_on(path).start(), model_on(path).start()
    for each in (session, alone):
        each.extend(some_tokens(12, seed=1))
    fork = WRONG[wrong](session)
    for each in (fork, alone):
        each.extend([3, 5])
    session.extend([4, 6])
    apart = (fork.extend([7]).logits - alone.extend([7]).logits).abs().max()
    assert apart > 100 * TOLERANCE
