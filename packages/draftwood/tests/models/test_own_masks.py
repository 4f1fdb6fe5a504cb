"""Rows with a mask of their own: PyTorch's logits, bits of their own, commits of all of them."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from test_attention import BLOCK, TREE, hf_model, set_threads, some
from transformers import PreTrainedModel

from draftwood import RowsInput
from draftwood.models.model import ForwardInput, PromptInput
from draftwood.models.native import NativeModel, has_int8
from draftwood.models.session import PooledSession
from draftwood.native import library
from draftwood.testing.models import TableModel
from written_masks import Rows, some_rows, written_out

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
VOCAB = 50
WINDOWS = (None, 7, BLOCK + 20)
# length of the text, rows
SIZES = ((0, 1), (0, 12), (3, 33), (40, 9), (BLOCK - 4, 70), (BLOCK, 5), (2 * BLOCK + 3, 40))
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"products": "bfloat16", "dtype": "bfloat16"},
    "int8": {"products": "int8"},
    "int8 cache": {"cache": "int8"},
}
OF_FORMATS = [pytest.param(name, marks=[needs_int8] if name == "int8" else []) for name in FORMATS]
# largest difference and root of the mean square, in units of the spread
TOLERANCES = {"float32": (1e-4, 1e-4), "bfloat16": (0.3, 0.06), "int8 cache": (0.15, 0.025)}


@cache
def native(name: str, window: int | None, heads: int = 6) -> NativeModel:
    return NativeModel(hf_model(64, window, heads), **FORMATS[name])


@cache
def wide(name: str, window: int | None) -> PreTrainedModel:
    """In 64 bits, with weights as the format has them."""
    model = hf_model(64, window)
    return (model.bfloat16() if name == "bfloat16" else model).double()


def logits(model: NativeModel, rows: Rows) -> np.ndarray:
    return model.forward([rows.begun(model.start())])[0].rows


def reaching(rows: Rows, row: int) -> np.ndarray:
    """True where a row can know of one, directly or by others."""
    known = rows.own.copy()
    for _ in rows.tokens:
        known = known | (known @ known)
    return known[:, row]


def near(rows: Rows, row: int, window: int | None) -> np.ndarray:
    """True where a row sees one in every layer."""
    reach = len(rows.text) + 10**6 if window is None else window
    return rows.own[:, row] & (rows.positions[row] > rows.positions - reach)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", list(TOLERANCES))
def test_random_masks_give_the_logits_of_masks_written_out(
    name: str, window: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_threads(monkeypatch, threads)
    most, usual = TOLERANCES[name]
    for seed, (length, count) in enumerate(SIZES * (3 if threads == 2 else 1)):
        rows = some_rows(length, count, VOCAB, seed)
        expected = written_out(wide(name, window), rows).numpy()
        difference = (logits(native(name, window), rows) - expected) / expected.std()
        assert np.abs(difference).max() <= most, seed
        assert np.sqrt(np.square(difference).mean()) <= usual, seed


@pytest.mark.parametrize("window", WINDOWS)
def test_one_flipped_bit_of_a_mask_shows(window: int | None) -> None:
    """Negative control: of the rows, and of the text behind windows."""
    draw = np.random.default_rng(0)
    for seed, (length, count) in enumerate(SIZES[1:], 1):
        rows = some_rows(length, count, VOCAB, seed)
        found = logits(native("float32", window), rows)
        row = int(draw.integers(count))
        others = np.flatnonzero(rows.positions > rows.positions[row] - (window or 10**6))
        place = length + int(draw.choice(others[others != row]))
        wrong = written_out(wide("float32", window), rows.with_flipped(row, place)).numpy()
        difference = np.abs(found - wrong) / wrong.std()
        assert difference[row].max() > 20 * TOLERANCES["float32"][0]
        (blind,) = np.nonzero(~reaching(rows.with_flipped(row, place), row))
        assert difference[blind].max(initial=0.0) <= TOLERANCES["float32"][0]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", OF_FORMATS)
def test_just_the_rows_that_see_another_token_change(name: str, window: int | None) -> None:
    model = native(name, window)
    for seed, (length, count) in enumerate(SIZES[1:], 1):
        rows = some_rows(length, count, VOCAB, seed)
        row = seed % count
        other = rows.with_token(row, (rows.tokens[row] + 1) % VOCAB)
        changed = (logits(model, rows) != logits(model, other)).any(1)
        assert changed[near(rows, row, window)].all()
        assert not changed[~reaching(rows, row)].any()


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", OF_FORMATS)
def test_bits_are_the_same_beside_other_texts_and_by_any_threads(
    name: str, window: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = native(name, window)
    cases = [some_rows(length, count, VOCAB, seed) for seed, (length, count) in enumerate(SIZES)]
    set_threads(monkeypatch, 1)
    alone = [logits(model, rows) for rows in cases]
    other = model.start()
    other.extend(some(300))
    tree = other.forward(TREE).rows
    set_threads(monkeypatch, threads)
    inputs = [rows.begun(model.start()) for rows in cases]
    prompt = PromptInput(model.start(), some(30), "last")
    together = model.forward([*inputs[:3], ForwardInput(other, TREE), prompt, *inputs[3:]])
    assert np.array_equal(together.pop(3).rows, tree)
    together.pop(3)
    for here, there in zip(alone, together, strict=True):
        assert np.array_equal(here, there.rows)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("name", OF_FORMATS)
def test_trees_given_as_rows_have_the_bits_of_trees(name: str, window: int | None) -> None:
    session = native(name, window).start()
    session.extend(some(BLOCK - 3))
    given = RowsInput(session, TREE.token_list, session.length + TREE.depths, TREE.ancestors)
    rows = session.model.forward([given])[0].rows
    assert np.array_equal(rows, session.forward(TREE).rows)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("name", OF_FORMATS)
def test_a_block_has_the_same_bits_alone_and_among_blocks(name: str, window: int | None) -> None:
    model, size = native(name, window), 8
    session = model.start()
    session.extend(some(BLOCK - 3))
    blocks = [some(size, seed) for seed in range(4)]
    places = list(range(session.length, session.length + size))
    every, sees = np.ones((size, size), bool), np.kron(np.eye(4, dtype=bool), np.ones((size, size)))
    alone = [model.forward([RowsInput(session, each, places, every)])[0].rows for each in blocks]
    tokens = [token for each in blocks for token in each]
    together = RowsInput(session, tokens, places * 4, sees.astype(bool))
    assert np.array_equal(model.forward([together])[0].rows, np.concatenate(alone))
    session.commit(range(2 * size, 3 * size))
    after = model.start()
    after.extend(some(BLOCK - 3))
    model.forward([RowsInput(after, blocks[2], places, every)])
    after.commit(range(size))
    assert np.array_equal(session.extend([5]).rows, after.extend([5]).rows)


def block_causal(length: int, size: int, blocks: int) -> np.ndarray:
    """Mask of a text read token by token, and blocks whose rows see each other."""
    number = np.concatenate([np.arange(length), length + np.arange(size * blocks) // size])
    return number[None] <= number[:, None]


@pytest.mark.parametrize("window", [None, 7, 90])
@pytest.mark.parametrize("name", OF_FORMATS)
def test_behind_a_committed_block_rows_have_the_bits_of_a_pass_over_all(
    name: str, window: int | None
) -> None:
    model, length, size = native(name, window), BLOCK - 11, 16
    text, first, second = some(length), some(size, 1), some(size, 2)
    places, every = np.arange(length + 2 * size), np.ones((size, size), bool)
    fresh, step = model.start(), model.start()
    whole = RowsInput(fresh, [*text, *first, *second], places, block_causal(length, size, 2))
    expected = model.forward([whole])[0].rows
    step.extend(text)
    order = np.random.default_rng(0).permutation(size)  # rows lie in any order
    given = RowsInput(step, np.array(first)[order].tolist(), places[length:][order], every)
    found = model.forward([given])[0].rows
    assert np.array_equal(found[np.argsort(order)], expected[length : length + size])
    step.commit(np.argsort(order).tolist())
    assert step.length == length + size
    given = RowsInput(step, second, places[length + size :], every)
    assert np.array_equal(model.forward([given])[0].rows, expected[length + size :])
    step.commit(range(size))
    fresh.commit(range(whole.rows))  # a whole text at once
    assert np.array_equal(step.forward(TREE).rows, fresh.forward(TREE).rows)
    step.rewind(size)  # back to the first block, without its second
    other = model.forward([RowsInput(step, second[::-1], places[length + size :], every)])[0]
    assert not np.array_equal(other.rows, expected[length + size :])


@pytest.mark.parametrize("name", OF_FORMATS)
def test_a_finished_block_enters_with_the_pass_of_the_next(name: str) -> None:
    model, length, size = native(name, None), 50, 8
    text, done, masked = some(length), some(size, 1), [0] * size
    both, apart = model.start(), model.start()
    for session in (both, apart):
        session.extend(text)
    sees = block_causal(0, size, 2)
    given = RowsInput(both, [*done, *masked], range(length, length + 2 * size), sees)
    found = model.forward([given])[0].rows
    both.commit(range(size))
    model.forward([RowsInput(apart, done, range(length, length + size), sees[:size, :size])])
    apart.commit(range(size))
    for session in (both, apart):
        again = RowsInput(
            session, masked, range(length + size, length + 2 * size), sees[:size, :size]
        )
        assert np.array_equal(model.forward([again])[0].rows, found[size:])


def test_logits_and_states_are_those_asked_for() -> None:
    model = native("float32", None)
    rows = some_rows(20, 6, VOCAB, seed=2)
    given = rows.begun(model.start())
    whole = model.forward([given])[0].rows
    last = RowsInput(given.session, given.tokens, given.positions, given.sees, "last", (0, 2))
    output = model.forward([last])[0]
    assert np.array_equal(output.rows, whole[-1:])
    assert {layer: state.shape for layer, state in output.hidden.items()} == {
        0: (6, 64),
        2: (6, 64),
    }
    assert np.array_equal(given.alone().rows, whole)


def test_what_does_not_fit_is_refused_by_name() -> None:
    model = native("float32", None)
    session = model.start()
    session.extend(some(5))
    one, two = np.ones((1, 1), bool), np.ones((2, 2), bool)

    def run(tokens: list[int], positions: list[int], sees: Any) -> None:
        model.forward([RowsInput(session, tokens, positions, sees)])

    with pytest.raises(ValueError, match="needs at least one; give it a token"):
        run([], [], np.ones((0, 0), bool))
    with pytest.raises(ValueError, match=r"take positions \[2\] and sees \[2 2\], or \[2 7\]"):
        run([1, 2], [5], two)
    with pytest.raises(ValueError, match=r"got \[2\] and \[1 1\]"):
        run([1, 2], [5, 6], one)
    with pytest.raises(TypeError, match="must be of type bool, True where a row sees, got int64"):
        run([1], [5], [[1]])
    with pytest.raises(ValueError, match="row 1 does not see itself; set its place"):
        run([1, 2], [5, 6], np.array([[True, True], [True, False]]))
    with pytest.raises(ValueError, match="positions count from 0, got -1"):
        run([1], [-1], one)
    with pytest.raises(ValueError, match="has 2048 positions, and a row asks for position 2048"):
        run([1], [2048], one)
    with pytest.raises(ValueError, match="token ids must be 0 to 49"):
        run([50], [5], one)
    assert session.length == 5


def test_commits_keep_rows_in_the_order_of_their_positions() -> None:
    model = native("float32", None)
    session = model.start()
    session.extend(some(5))
    given = RowsInput(session, [1, 2, 3], [6, 5, 9], np.ones((3, 3), bool))
    model.forward([given])
    with pytest.raises(ValueError, match="row 0 has position 6 and would be kept at 5; commit"):
        session.commit([0, 1])
    with pytest.raises(ValueError, match="row 2 has position 9 and would be kept at 7"):
        session.commit([1, 0, 2])
    with pytest.raises(ValueError, match="node 3 cannot be kept: only 3 nodes"):
        session.commit([1, 0, 3])
    with pytest.raises(ValueError, match="nodes before 1 must be run first; 0 were run"):
        session.forward(TREE, first=1)
    session.commit([1, 0])
    assert session.length == 7
    session.forward(TREE)  # nodes of trees come and go as before
    session.commit([0, 3])
    assert session.length == 9


def test_a_model_without_layers_refuses_rows() -> None:
    session = TableModel(np.zeros((4, 4), np.float32)).start()
    with pytest.raises(ValueError, match=r"needs a model that lets rows of a pass see later ones"):
        session.model.forward([RowsInput(session, [1], [0], np.ones((1, 1), bool))])


def test_sessions_that_are_closed_take_no_rows() -> None:
    session = native("float32", None).start()
    assert isinstance(session, PooledSession)
    session.close()
    with pytest.raises(ValueError, match="called on a session that is closed"):
        session.model.forward([RowsInput(session, [1], [0], np.ones((1, 1), bool))])
