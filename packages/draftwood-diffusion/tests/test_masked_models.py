"""The loop on transformers: bits of blocks, caches beside whole passes, FreeDave's identity."""

from collections import deque
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from draftwood.engine import Limits, Options, run_all
from draftwood.engine.scheduler import Scheduler
from draftwood.models.model import Cpu, RowsInput
from draftwood.models.native import NativeModel, has_int8
from draftwood.models.requirements import BlockCache
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.testing import tiny_llama
from draftwood_diffusion.block_state import BlockState
from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.lookahead import StepsAhead
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.loop import MaskedText, WrittenText, written
from draftwood_diffusion.masked_model import DiffusionSettings, MaskedModel
from draftwood_diffusion.passes import passes_of
from draftwood_diffusion.passes.base import block_causal
from draftwood_diffusion.proof import AHEAD, Stale, places
from draftwood_diffusion.unmasking import Unmasking, parse

VOCAB, MASK, LENGTH = 64, 63, 20
KINDS = [(False, False), (True, False), (False, True), (True, True)]
pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
FORMATS = [
    "float32",
    pytest.param(
        "int8",
        marks=pytest.mark.skipif(not has_int8(Cpu()), reason="this CPU has no fast 8-bit products"),
    ),
]


@cache
def native(name: str) -> NativeModel:
    return NativeModel(tiny_llama(seed=1), products="int8" if name == "int8" else None)


def masked(name: str, length: int, kind: tuple[bool, bool] = (False, False)) -> MaskedModel:
    return MaskedModel(native(name), DiffusionSettings(MASK, length, *kind))


def prompt(seed: int) -> list[int]:
    draw = np.random.default_rng(seed)
    return draw.integers(MASK, size=1 + seed % 9).tolist()


def text(model: MaskedModel, method: Unmasking, seed: int, temperature: float) -> WrittenText:
    options = Options(Sampling(temperature=temperature), LENGTH, seed=seed)
    return written(model, prompt(seed), options, method)


@cache
def usual_text(
    name: str, length: int, kind: tuple[bool, bool], method: str, seed: int
) -> WrittenText:
    return text(masked(name, length, kind), parse(method), seed, float(seed % 2))


def changed(name: str, method: str, lookahead: StepsAhead, seeds: int, lengths: list[int]) -> int:
    """Texts that a lookahead changes, one for each seed and block length, of all kinds of models
    in turn, at temperatures 0 and 1.
    """
    looked, wrong, saved = replace(parse(method), lookahead=lookahead), 0, 0
    for seed, length in product(range(seeds), lengths):
        kind = KINDS[seed // 2 % len(KINDS)]
        one = usual_text(name, length, kind, method, seed)
        other = text(masked(name, length, kind), looked, seed, float(seed % 2))
        wrong += one.tokens != other.tokens or places(one) != places(other)
        saved += one.runs - other.runs
    assert saved > 0
    return wrong


@pytest.mark.parametrize("lookahead", AHEAD)
@pytest.mark.parametrize("name", FORMATS)
def test_freedave_writes_the_one_by_one_text(name: str, lookahead: StepsAhead) -> None:
    assert changed(name, "one-by-one", lookahead, 8, [3, 8]) == 0


@pytest.mark.parametrize("lookahead", [FreeDave(4), FreeDave(8, 2)])
@pytest.mark.parametrize("method", ["random", "threshold,tau=0.2", "ccd", "local-leap,tau=0.2"])
def test_lookahead_keeps_the_text_of_every_rule(method: str, lookahead: StepsAhead) -> None:
    assert changed("float32", method, lookahead, 8, [8]) == 0


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind[1]])
def test_drafts_reach_the_next_block(kind: tuple[bool, bool], length: int) -> None:
    looked, common = parse("left-to-right+freedave,d=16,w=4"), 0
    for seed in range(6):
        one = usual_text("float32", length, kind, "left-to-right", seed)
        other = text(masked("float32", length, kind), looked, seed, float(seed % 2))
        assert (other.tokens, places(other)) == (one.tokens, places(one))
        blocks: dict[int, set[int]] = {}
        for each in other.fixings:
            blocks.setdefault(each.run, set()).add((len(prompt(seed)) + each.place) // length)
        common += any(len(each) > 1 for each in blocks.values())
    assert common


def test_branches_save_passes_and_cost_rows() -> None:
    method, kind = parse("left-to-right"), KINDS[0]
    runs, rows = [0, 0], [0, 0]
    for seed, (number, w) in product(range(12), enumerate((1, 3))):
        looked = replace(method, lookahead=FreeDave(8, w))
        made = text(masked("float32", 8, kind), looked, seed, 1.0)
        runs[number], rows[number] = runs[number] + made.runs, rows[number] + made.rows
    assert runs[1] < runs[0]
    assert rows[1] > rows[0]


@pytest.mark.proof
@pytest.mark.parametrize("lookahead", AHEAD)
@pytest.mark.parametrize("name", FORMATS)
def test_freedave_keeps_forty_texts_at_all_block_lengths(name: str, lookahead: StepsAhead) -> None:
    assert changed(name, "one-by-one", lookahead, 40, [1, 4, 16, 32]) == 0


@pytest.mark.parametrize("wrong", [Stale(4), Stale(8, 3)])
@pytest.mark.parametrize("name", FORMATS)
def test_a_stale_branch_is_caught(name: str, wrong: StepsAhead) -> None:
    """Negative control."""
    assert changed(name, "random", wrong, 8, [8]) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_block_has_the_same_bits_alone_and_in_a_tree_of_blocks(
    name: str, kind: tuple[bool, bool]
) -> None:
    model, draw = masked(name, 8, kind), np.random.default_rng(0)
    given = draw.integers(MASK, size=24).tolist()
    states = [
        BlockState(tuple(draw.choice([MASK, *range(MASK)], size=8).tolist()), MASK)
        for _ in range(5)
    ]

    def rows(*own: BlockState) -> list[np.ndarray]:
        passes = passes_of(model, given, 40)
        while (asked := passes.prompt_rows(8)) is not None:
            model.model.forward([asked])
            passes.take_prompt()
        (output,) = model.model.forward([passes.rows(own)])
        found = passes.take(own, output.rows)
        passes.close()
        return found

    together = rows(*states)
    for state, found in zip(states, together, strict=True):
        assert np.array_equal(rows(state)[0], found)
    assert not np.array_equal(together[0], together[1])


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_cached_blocks_write_what_whole_passes_write(name: str, shifted: bool) -> None:
    """Each place is fixed by the logits of one pass over everything with the mask written out."""
    model = masked(name, 4, (shifted, False))
    for seed in range(6):
        asked = prompt(seed)
        found = text(model, parse("left-to-right"), seed, 0.0).tokens
        known = list(asked)
        while len(known) < len(asked) + LENGTH:
            end = min((len(known) // 4 + 1) * 4, len(asked) + LENGTH)
            tokens = known + [MASK] * (end - len(known))
            session = model.model.start()
            sees = block_causal(0, end, 4)
            logits = model.model.forward([RowsInput(session, tokens, range(end), sees)])[0].rows
            session.close()
            row = logits[len(known) - shifted].copy()
            row[MASK] = -np.inf
            known.append(int(row.argmax()))
        assert found == known[len(asked) :]


def test_bidirectional_texts_are_those_of_whole_passes() -> None:
    model, asked = masked("float32", 6, (False, True)), prompt(5)
    found = text(model, parse("one-by-one"), 5, 0.0).tokens
    known = np.array([*asked, *[MASK] * LENGTH])
    for start in range(len(asked), len(known), 6):
        block = np.arange(start, min(start + 6, len(known)))
        while (open_places := block[known[block] == MASK]).size:
            session = model.model.start()
            every = np.ones((len(known), len(known)), bool)
            given = RowsInput(session, known.tolist(), range(len(known)), every)
            logits = model.model.forward([given])[0].rows[open_places].astype(np.float64)
            session.close()
            logits[:, MASK] = -np.inf
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            best = (probs.max(-1) / probs.sum(-1)).argmax()
            known[open_places[best]] = logits[best].argmax()
    assert found == known[len(asked) :].tolist()


@pytest.mark.parametrize(
    ("method", "bidirectional"),
    [
        *product(["one-by-one", "freedave", "whole"], [False, True]),
        ("freedave+adablock", False),
        ("freedave+prefix-cache", True),
        ("freedave+dual-cache", True),
    ],
)
def test_texts_beyond_the_cache_wait_and_stay_as_they_are(method: str, bidirectional: bool) -> None:
    own = NativeModel(tiny_llama(seed=1))
    model = MaskedModel(own, DiffusionSettings(MASK, 16, False, bidirectional))
    parsed = parse(method)
    if isinstance(parsed.blocks, AdaBlock):
        parsed = replace(parsed, blocks=replace(parsed.blocks, delimiters=frozenset({1})))
    options = [Options(Sampling(temperature=1.0), 80, seed=seed) for seed in range(5)]
    alone = [written(model, prompt(3 + n), each, parsed).tokens for n, each in enumerate(options)]
    pool = own.pool
    assert isinstance(pool, BlockCache)
    for blocks in (pool.blocks_for(90) + 1, 2 * pool.blocks_for(90)):
        pool.limit = blocks * pool.block_bytes
        tasks = [MaskedText(model, prompt(3 + n), each, parsed) for n, each in enumerate(options)]
        deque(run_all(tasks, Limits()), 0)
        assert [each.text.tokens for each in tasks] == alone


@pytest.mark.parametrize("is_paced", [False, True])
def test_a_text_in_its_prompt_goes_on_while_an_older_one_waits_for_room(is_paced: bool) -> None:
    own = NativeModel(tiny_llama(seed=1))
    model = MaskedModel(own, DiffusionSettings(MASK, 16, False, False))
    assert isinstance(own.pool, BlockCache)
    own.pool.limit = 6 * own.pool.block_bytes

    def task(length: int, tokens: int) -> MaskedText:
        options = Options(Sampling(temperature=1.0), tokens, seed=1)
        return MaskedText(model, [1 + n % 20 for n in range(length)], options, parse("one-by-one"))

    limits = Limits(requests=3, prompt_rows=16)
    if is_paced:  # as in servers
        limits = limits.paced(lambda rows: 1e-4 * rows, 0.01)
    scheduler = Scheduler(limits)
    scheduler.add(task(8, 70))  # 3 blocks
    for _ in range(68):
        scheduler.step()
    scheduler.add(task(8, 130))  # 5 blocks: it waits
    scheduler.add(task(80, 10))  # 3 blocks: it begins beside the first, which ends amid its prompt
    for _ in range(1000):
        scheduler.step()
    assert not len(scheduler)


def test_a_text_that_can_never_fit_is_refused_at_once() -> None:
    own = NativeModel(tiny_llama(seed=1))
    model = MaskedModel(own, DiffusionSettings(MASK, 16, False, True))
    assert isinstance(own.pool, BlockCache)
    own.pool.limit = 3 * own.pool.block_bytes
    method = parse("one-by-one+dual-cache")
    with pytest.raises(ValueError, match="needs 4 blocks of the cache, which can hold 3"):
        MaskedText(model, [1] * 8, Options(Sampling(), 82), method)
    assert own.pool.free_blocks == 3


@pytest.mark.parametrize("reuse", ["prefix-cache", "dual-cache"])
@pytest.mark.parametrize("name", FORMATS)
def test_caches_are_stale_within_a_block_and_exact_in_its_first_pass(name: str, reuse: str) -> None:
    model, same = masked(name, 6, (False, True)), 0
    for seed in range(6):
        plain = text(model, parse("one-by-one"), seed, 0.0)
        kept = text(model, parse(f"one-by-one+{reuse}"), seed, 0.0)
        looked = text(model, parse(f"one-by-one+freedave+{reuse}"), seed, 0.0)
        assert (looked.tokens, places(looked)) == (kept.tokens, places(kept))
        assert places(kept)[0] == places(plain)[0]
        assert kept.rows < plain.rows
        same += kept.tokens == plain.tokens
    assert same < 6  # they are approximations
