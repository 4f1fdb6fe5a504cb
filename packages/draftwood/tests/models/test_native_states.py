"""Tests of layers with running states on the native path."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.models.cache import states
from draftwood.models.cache.states import StateBlocks
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.model import CacheFullError, ForwardInput, ModelSession
from draftwood.models.native import NativeModel
from draftwood.models.native.prefixes import Prefixes
from draftwood.models.shared import shared_passes
from draftwood.native import library
from draftwood.native.formats import CacheType, Products
from draftwood.sampling import Sampling
from draftwood.tree import DraftTree
from draftwood.verifiers.match import Match
from families import STATEFUL, VOCAB, assert_close, hf_model, plainly, some_tokens
from text.test_ends import NAMES, method_of, plain_text, text_of
from thinning import thinned

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
SPACES = ("granite-states", "granite-states-experts", "bamba")
INTEGERS: list[tuple[str, Products]] = [
    (family, "int8")
    for family in ("qwen3.5", "qwen3.5-experts", "qwen3-next", "lfm2", "lfm2-experts", *SPACES)
]
LENGTH = 120  # of texts; a block has 32 places


def native(
    family: str = "qwen3.5", products: Products = "float32", cache: CacheType | None = None
) -> NativeModel:
    return NativeModel(hf_model(family), products, cache=cache)


def pool_of(model: NativeModel) -> StateBlocks:
    assert isinstance(model.pool, StateBlocks)
    return model.pool


def logits(session: ModelSession, tokens: list[int]) -> np.ndarray:
    return np.asarray(session.extend(tokens).logits)


def memories(model: NativeModel) -> int:
    return len(pool_of(model)._memories)


def assert_says_as_its_own_code(family: str, length: int) -> None:
    """The logits and hidden states of a text are those of the family's model in PyTorch."""
    tokens, own = some_tokens(length), hf_model(family)
    found = native(family).start().extend(tokens, hidden=(0, 2, 4))
    assert_close(found.logits, plainly(own, tokens))
    with torch.no_grad():
        wanted = own(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    for layer in (0, 2, 4):
        assert_close(found.hidden[layer], wanted.hidden_states[layer][0])


def assert_cuts_change_nothing(
    model: NativeModel, tokens: list[int], pieces: tuple[int, ...]
) -> None:
    """A text that comes in pieces of these sizes, in turn, has the bits of one that comes whole."""
    whole, session = logits(model.start(), tokens), model.start()
    found = list[np.ndarray]()
    while session.length < len(tokens):
        size = pieces[len(found) % len(pieces)]
        found.append(logits(session, tokens[session.length : session.length + size]))
    assert np.array_equal(np.concatenate(found), whole)


@pytest.mark.parametrize("family", STATEFUL)
def test_logits_and_hidden_states_are_those_of_transformers(family: str) -> None:
    assert_says_as_its_own_code(family, LENGTH)


@pytest.mark.parametrize(
    ("family", "products"), [("qwen3.5", "float32"), ("qwen3.5", "bfloat16"), *INTEGERS]
)
@pytest.mark.parametrize("pieces", [(1,), (7,), (32,), (31, 2), (5, 64, 1, 33)])
def test_a_text_gives_the_same_bits_however_it_is_cut(
    family: str, products: Products, pieces: tuple[int, ...]
) -> None:
    assert_cuts_change_nothing(native(family, products), some_tokens(LENGTH), pieces)


def some_draft(tokens: list[int], chance: random.Random) -> tuple[DraftTree, list[int]]:
    """A tree around a chain of tokens, and the nodes of the chain."""
    drafted, parents, chain = [tokens[0]], [-1], [0]
    for token in tokens[1:]:
        for _ in range(chance.randrange(3)):
            drafted.append(chance.randrange(VOCAB))
            parents.append(chance.randrange(len(drafted) - 1))
        drafted.append(token)
        parents.append(chain[-1])
        chain.append(len(drafted) - 1)
    return DraftTree.of(drafted, parents), chain


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("family", "products"), [("qwen3.5", "float32"), *INTEGERS])
def test_trees_give_the_bits_of_texts_whatever_is_kept_and_taken_back(
    family: str, products: Products, seed: int
) -> None:
    model, tokens, chance = native(family, products), some_tokens(LENGTH), random.Random(seed)
    whole, session = logits(model.start(), tokens), model.start()
    session.extend(tokens[:5])
    while session.length < LENGTH - 1:
        before = session.length
        draft = tokens[before : before + chance.randrange(1, 50)]
        tree, chain = some_draft(draft, chance)
        half = chance.randrange(len(tree)) if chance.random() < 0.5 else 0
        rows = []
        if half:  # a tree that grows
            rows.append(np.asarray(session.forward(tree.keep(range(half))).logits))
        rows.append(np.asarray(session.forward(tree, half).logits))
        found = np.concatenate(rows)
        assert np.array_equal(found[chain], whole[before : before + len(draft)])
        session.commit(chain[: chance.randrange(1, len(chain) + 1)])
        if chance.random() < 0.3:
            session.rewind(chance.randrange(min(session.length, 45)))


def test_texts_run_side_by_side_as_alone() -> None:
    model, texts = native(products="int8"), [some_tokens(70, seed) for seed in range(3)]
    alone = [logits(model.start(), text) for text in texts]
    sessions = [model.start() for _ in texts]
    for session, text, already in zip(sessions, texts, (3, 31, 40), strict=True):
        session.extend(text[:already])
    for _ in range(25):
        trees = [
            some_draft(text[session.length : session.length + 4], random.Random(session.length))
            for session, text in zip(sessions, texts, strict=True)
        ]
        outs = model.forward(
            [
                ForwardInput(session, tree)
                for session, (tree, _) in zip(sessions, trees, strict=True)
            ]
        )
        for session, (_, chain), out, rows in zip(sessions, trees, outs, alone, strict=True):
            wanted = rows[session.length : session.length + len(chain)]
            assert np.array_equal(np.asarray(out.logits)[chain], wanted)
            session.commit(chain[:1])


def test_forks_and_prefixes_go_on_as_the_text_would() -> None:
    model, tokens = native(), some_tokens(LENGTH)
    whole = logits(model.start(), tokens)
    session = model.start()
    session.extend(tokens[:50])
    session.extend(tokens[50:100])
    for length in (100, 97, 64, 33, 20, 0):
        fork = session.fork(length=length)
        assert np.array_equal(logits(fork, tokens[length:]), whole[length:])
    assert np.array_equal(logits(session, tokens[100:]), whole[100:])
    prefixes = Prefixes(model)
    prefixes.remember(session, tokens)
    for known in (LENGTH, 110, 90, 40):
        text = [*tokens[:known], (tokens[known % LENGTH] + 1) % VOCAB, *some_tokens(9)]
        began, length = prefixes.start(text)
        assert length == began.length <= known
        assert np.array_equal(logits(began, text[length:]), logits(model.start(), text)[length:])


def test_a_prompt_goes_on_from_the_end_of_one_that_is_remembered() -> None:
    """Tokens that are known are not run again, and no others are left out."""
    model, tokens, ran = native(), some_tokens(LENGTH), list[int]()
    prefixes, session = Prefixes(model), model.start()
    session.extend(tokens[:75])
    prefixes.remember(session, tokens[:75])
    session.extend(tokens[75:])
    session.close()
    usual = NativeModel._compute

    def counted(self: NativeModel, parts: list, hidden: tuple[int, ...]) -> list:  # type: ignore
        ran.append(sum(part.place.count for part in parts))
        return usual(self, parts, hidden)

    NativeModel._compute = counted  # type: ignore[method-assign, assignment]
    try:
        began, length = prefixes.start(tokens)
        began.extend(tokens[length:])
        assert (length, ran) == (75, [LENGTH - 75])
        began, length = prefixes.start([*tokens[:40], *tokens])
        assert length == 0
    finally:
        NativeModel._compute = usual  # type: ignore[method-assign]


def test_a_prompt_that_differs_within_a_block_takes_nothing_that_lies_behind_it() -> None:
    model, tokens = native(), some_tokens(LENGTH)
    prefixes, session = Prefixes(model), model.start()
    session.extend(tokens[:75])
    prefixes.remember(session, tokens[:75])
    other = [*tokens[:40], *((token + 1) % VOCAB for token in tokens[40:64]), *tokens[64:70]]
    began, length = prefixes.start(other)
    assert length <= 40
    assert np.array_equal(logits(began, other[length:]), logits(model.start(), other)[length:])


@pytest.mark.parametrize("length", [66, 75, 95, 96])
def test_a_prompts_end_is_kept_beside_the_text_that_went_on(length: int) -> None:
    """A chat whose thoughts are left out goes on from there."""
    model, tokens = native(), some_tokens(LENGTH)
    prefixes, session = Prefixes(model), model.start()
    session.extend(tokens[:length])
    prefixes.remember(session, tokens[:length])
    for token in tokens[length:]:
        session.extend([token])
    prefixes.remember(session, tokens)
    session.close()
    text = [*tokens[:length], (tokens[length] + 1) % VOCAB, *some_tokens(9, 2)]
    began, known = prefixes.start(text)
    assert known == length
    assert np.array_equal(logits(began, text[known:]), logits(model.start(), text)[known:])
    began, known = prefixes.start([*tokens, 3])
    assert known == LENGTH


def test_prompts_that_branch_off_twice_share_what_is_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second leaves a memory where it branches off, from which the third goes on."""
    model, ran = native(), list[int]()
    usual, common = NativeModel._compute, some_tokens(70)

    def counted(self: NativeModel, parts: list[Any], hidden: tuple[int, ...]) -> list[Any]:
        ran.append(sum(part.place.count for part in parts))
        return usual(self, parts, hidden)

    monkeypatch.setattr(NativeModel, "_compute", counted)
    prefixes, rows = Prefixes(model), list[int]()
    for seed in range(1, 5):
        prompt = [*common, seed, *some_tokens(30, seed)]
        session, length = prefixes.start(prompt)
        wanted = logits(model.start(), prompt)[length:]
        ran.clear()
        assert np.array_equal(logits(session, prompt[length:]), wanted)
        rows.append(sum(ran))
        prefixes.remember(session, prompt)
        session.close()
    assert rows[:2] == [101, 101]
    assert rows[2:] == [101 - 64, 101 - 64]


@pytest.mark.parametrize(("parts", "back"), [((100,), 20), ((50, 50, *[1] * 30), 90)])
def test_a_tree_may_start_with_tokens_that_were_taken_back(
    parts: tuple[int, ...], back: int
) -> None:
    model, tokens = native(), some_tokens(LENGTH + 20)
    whole, session = logits(model.start(), tokens), model.start()
    for count in parts:
        session.extend(tokens[session.length : session.length + count])
    end = session.length
    session.rewind(back)
    chain = DraftTree.of(tokens[end - back : end + 5], list(range(-1, back + 4)))
    found = np.asarray(session.forward(chain, back).logits)
    assert np.array_equal(found, whole[end : end + 5])


@pytest.mark.parametrize("shares", ["fork", "prefixes"])
def test_what_others_have_of_tokens_taken_back_is_not_gone_on_from(shares: str) -> None:
    model, tokens = native(), some_tokens(LENGTH)
    session, prefixes = model.start(), Prefixes(model)
    session.extend(tokens[:97])
    other = session.fork() if shares == "fork" else None
    prefixes.remember(session, tokens[:97])
    session.rewind(57)
    text = [*tokens[:40], *some_tokens(24, seed=7), *tokens[:9]]
    session.extend(text[40:64])
    assert np.array_equal(logits(session, text[64:]), logits(model.start(), text)[64:])
    if other is not None:
        assert np.array_equal(logits(other, tokens[97:]), logits(model.start(), tokens)[97:])


def test_a_full_cache_takes_the_memories_of_texts_that_ended() -> None:
    model, tokens = native(), some_tokens(LENGTH)
    pool, prefixes = pool_of(model), Prefixes(model)
    pool.limit = 30 * pool.block_bytes + 4 * pool._memory_bytes
    for seed in range(12):
        text = [seed, *tokens]
        session, length = prefixes.start(text)
        session.extend(text[length:])
        prefixes.remember(session, text)
        session.close()
        assert pool.bytes <= pool.limit
    sessions = list[ModelSession]()

    def begin_many() -> None:
        for seed in range(12):
            sessions.append(model.start())
            sessions[-1].extend([seed, *tokens])

    with pytest.raises(CacheFullError, match="more blocks"):
        begin_many()
    for each in sessions:
        each.close()
    model.start().extend(tokens)


def test_what_fails_midway_leaves_nothing_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither blocks that nobody has, nor memories of tokens that were not run."""
    model, tokens = native(), some_tokens(LENGTH)
    session = model.start()
    session.extend(tokens[:100])
    used, usual = pool_of(model).used_blocks, StateBlocks._new_memory

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(StateBlocks, "_new_memory", fail)
        for _ in range(3):
            with pytest.raises(MemoryError):
                session.fork()
    assert pool_of(model).used_blocks <= used + 3
    session.rewind(80)
    with monkeypatch.context() as patch:
        patch.setattr(NativeModel, "prepare", fail)
        with pytest.raises(MemoryError):
            session.extend(tokens[20:50])
    assert usual is StateBlocks._new_memory
    assert np.array_equal(logits(session, tokens[20:50]), logits(model.start(), tokens)[20:50])


def test_memories_are_few_and_go_with_their_texts() -> None:
    model, tokens = native(), some_tokens(LENGTH)
    session = model.start()
    for token in tokens:
        session.extend([token])
        assert memories(model) <= 2
    session.rewind(60)
    session.extend(tokens[60:])
    assert memories(model) <= 3
    others = [model.start() for _ in range(3)]
    for other in others:
        other.extend(tokens)
    assert memories(model) <= 6
    taken = pool_of(model).bytes
    for each in (session, *others):
        each.close()
    model.start().extend(tokens[:3])
    assert memories(model) == 1
    assert pool_of(model).bytes <= taken


def _without_marks(self: StateBlocks, places: list) -> None:  # type: ignore[type-arg]
    """Leave every memory as it is, whatever is written before its block."""
    for place, _ in places:
        table = self._tables[place.slot]
        for index in range(place.start // states.PLACES, table.count):
            if table.addresses[index] not in self._memories:
                self._attach(table.addresses[index], self._new_memory())


def test_a_state_of_tokens_that_were_taken_back_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StateBlocks, "cover_states", _without_marks)
    model, tokens = native(), some_tokens(LENGTH)
    session = model.start()
    session.extend(some_tokens(60, seed=1))
    session.extend(some_tokens(20, seed=2))
    session.rewind(70)
    for token in tokens[10:]:
        session.extend([token])
    session.rewind(1)
    text = [*some_tokens(60, seed=1)[:10], *tokens[10:]]
    assert np.abs(logits(session, tokens[-1:]) - logits(model.start(), text)[-1]).max() > 1e-3


@pytest.mark.parametrize("fault", ["decay", "rate", "taps", "norm", "gate"])
def test_each_part_of_a_recurrence_matters(fault: str) -> None:
    """The negative control of the comparison with Transformers."""
    tokens, own = some_tokens(40), hf_model("qwen3.5")
    described = DescribedModel.of(own)
    layers = list(described.decoder.layers)
    for number, layer in enumerate(layers):
        state = layer.recurrence
        if state is None:
            continue
        if fault == "rate":
            turned = layer.value.reordered(np.arange(8)[::-1].copy())
            layers[number] = replace(layer, value=turned)
        elif fault == "gate":
            turned = layer.key.reordered(np.arange(128)[::-1].copy())
            layers[number] = replace(layer, key=turned)
        else:
            name = {"decay": "decays", "taps": "taps", "norm": "norm"}[fault]
            changed = np.asarray(getattr(state, name))[::-1].copy()
            layers[number] = replace(layer, recurrence=replace(state, **{name: changed}))
    wrong = replace(described, decoder=replace(described.decoder, layers=tuple(layers)))
    found = torch.from_numpy(np.asarray(NativeModel(wrong).start().extend(tokens).logits))
    assert (found - plainly(own, tokens)).abs().max() > 1e-2


@pytest.mark.parametrize("fault", ["skips", "tap_biases", "limits", "norm_groups", "steps", "norm"])
def test_each_part_of_a_state_space_matters(fault: str) -> None:
    tokens, own = some_tokens(40), hf_model("granite-states-experts")
    described = DescribedModel.of(own)
    layers = list(described.decoder.layers)
    for number, layer in enumerate(layers):
        state = layer.recurrence
        if state is None or state.space is None:
            continue
        if fault in ("steps", "norm"):
            changed = np.asarray(getattr(state, fault))[::-1].copy()
            layers[number] = replace(layer, recurrence=replace(state, **{fault: changed}))
            continue
        others = {"limits": (0.0, 100.0), "norm_groups": 1, "tap_biases": None}
        other = others.get(fault, np.asarray(state.space.skips)[::-1].copy())
        other = None if fault == "tap_biases" else other
        space = replace(state.space, **{fault: other})
        layers[number] = replace(layer, recurrence=replace(state, space=space))
    wrong = replace(described, decoder=replace(described.decoder, layers=tuple(layers)))
    found = torch.from_numpy(np.asarray(NativeModel(wrong).start().extend(tokens).logits))
    assert (found - plainly(own, tokens)).abs().max() > 1e-3


LACKING = {
    *("layer-skip", "layer-search", "early-exit", "ppd", "ppd-pipelined", "del", "propd"),
    *("windowed", "longspec", "masked-block", "masked-in-pass"),
}
"""Methods that leave out layers or parts of the text, or read keys and values."""


def assert_writes_as_plain(name: str, model: NativeModel, count: int) -> None:
    """A method writes what plain decoding does, where it should, or is refused by name."""
    prompt = some_tokens(20) * 2
    if name in LACKING:
        with pytest.raises(ValueError, match="needs a model that"):
            method_of(name, model)
        return
    method = method_of(name, model)
    for temperature in (0.0, 1.0):
        wanted = plain_text(model, temperature, count, tuple(prompt))
        found = text_of(model, method, Sampling(temperature), count, prompt)
        is_same = method.verifier.exact_for and temperature == 0
        if is_same or isinstance(method.verifier, Match):
            assert found == wanted


@pytest.mark.parametrize("name", thinned(NAMES, 8))
def test_methods_write_what_plain_decoding_writes(name: str) -> None:
    assert_writes_as_plain(name, native(products="int8"), 60)


@pytest.mark.parametrize("name", thinned(NAMES, 8, first=5))
def test_methods_write_the_same_over_state_spaces(name: str) -> None:
    assert_writes_as_plain(name, native("granite-states", "int8"), 50)


def test_a_state_that_nobody_made_is_not_known_to_those_who_come_behind_it() -> None:
    model, tokens = native(), some_tokens(LENGTH)
    prefixes, first, second = Prefixes(model), model.start(), model.start()
    first.extend(tokens[:20])
    first.forward(DraftTree.chain(tokens[20:64]))
    first.commit(list(range(44)))  # fills a block in which no pass begins
    second.extend(tokens[:64])
    for token in tokens[64:85]:
        second.extend([token])
    prefixes.remember(first, tokens[:64])
    prefixes.remember(second, tokens[:85])
    first.close()
    third, known = prefixes.start(tokens)
    assert known == 85
    third.extend(tokens[85:96])
    third.extend(tokens[96:100])
    text = [*tokens[:64], (tokens[64] + 1) % VOCAB, *some_tokens(9, 2)]
    began, known = prefixes.start(text)
    assert known == 64
    assert np.array_equal(logits(began, text[64:]), logits(model.start(), text)[64:])


def test_a_wrapped_model_catches_up_before_places_are_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, asked = native(), list[int]()
    catch_up = model.catch_up
    monkeypatch.setattr(
        model, "catch_up", lambda slot, length: asked.append(length) or catch_up(slot, length)
    )
    session: Any = shared_passes(model).start()
    session.extend(some_tokens(LENGTH)[:100])
    session.rewind(57)
    session.reserve(8)
    assert asked[-1] == 43
