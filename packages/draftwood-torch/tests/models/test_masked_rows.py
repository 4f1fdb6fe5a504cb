"""Rows with a mask of their own on the paths of PyTorch: the logits of masks written out."""

import numpy as np
import pytest
import torch
from test_by_place import by_place

from draftwood.models.model import ForwardInput, RowsInput
from draftwood_torch.models.transformers import TransformersModel
from families import (
    FAMILIES,
    LEAN_PATHS,
    SOME,
    VOCAB,
    assert_close,
    hf_model,
    model_of,
    some_tokens,
    some_tree,
)
from written_masks import Rows, some_rows, written_out

# length of the text, rows
SHAPES = ((0, 7), (3, 12), (20, 9), (11, 30))


@pytest.mark.parametrize("family", [*FAMILIES, *LEAN_PATHS])
def test_random_masks_give_the_logits_of_masks_written_out(family: str) -> None:
    model = model_of(family)
    for seed, shape in enumerate(SHAPES * 2):
        rows = some_rows(*shape, VOCAB, seed)
        given = rows.begun(model.start())
        found = model.forward([given])[0].logits
        assert_close(found, written_out(hf_model(family), rows))


@pytest.mark.parametrize("family", SOME)
def test_one_flipped_bit_of_a_mask_shows(family: str) -> None:
    """Negative control."""
    model = model_of(family)
    for seed in range(4):
        rows = some_rows(6, 5, VOCAB, seed)
        found = model.forward([rows.begun(model.start())])[0].logits
        row, place = next(
            (row, place)
            for row in range(5)
            for place in range(5)
            if row != place and rows.positions[place] >= rows.positions[row]
        )
        wrong = written_out(hf_model(family), rows.with_flipped(row, 6 + place))
        with pytest.raises(AssertionError):
            assert_close(found, wrong)


@pytest.mark.parametrize("family", SOME)
def test_behind_a_committed_block_rows_are_those_of_a_pass_over_all(family: str) -> None:
    model, length, size = model_of(family), 11, 6
    text, blocks = some_tokens(length, 1), some_tokens(2 * size, 2)
    session, places = model.start(), np.arange(length, length + 2 * size)
    number = np.concatenate([np.arange(length), length + np.arange(2 * size) // size])
    sees = (number[None] <= number[:, None])[length:]
    expected = written_out(hf_model(family), Rows(text, blocks, places, sees))
    session.extend(text)
    for first in (0, size):
        own = slice(first, first + size)
        order = np.random.default_rng(first).permutation(size)  # rows lie in any order
        tokens, every = np.array(blocks[own])[order].tolist(), np.ones((size, size), bool)
        output = model.forward([RowsInput(session, tokens, places[own][order], every)])[0]
        assert_close(output.logits[np.argsort(order)], expected[own])
        session.commit(np.argsort(order).tolist())
    assert session.length == length + 2 * size


@pytest.mark.parametrize("family", ["llama", "mistral-window", "llama/lean", "gemma3"])
def test_rows_of_several_texts_share_a_pass_with_trees(family: str) -> None:
    model, tree = model_of(family), some_tree(9, seed=5)
    cases = [some_rows(length, count, VOCAB, count) for length, count in SHAPES]
    other = model.start()
    other.extend(some_tokens(8, 3))
    expected = [other.forward(tree).logits]
    expected += [written_out(hf_model(family), rows) for rows in cases]
    given = [rows.begun(model.start()) for rows in cases]
    for here, there in zip(
        model.forward([ForwardInput(other, tree), *given]), expected, strict=True
    ):
        assert_close(here.logits, there)


@pytest.mark.parametrize("name", ["bark", "gpt-neo"])
def test_models_that_mask_later_tokens_themselves_are_refused(name: str) -> None:
    model = TransformersModel(by_place(name))
    assert "rows" not in model.abilities
    with pytest.raises(ValueError, match=r"lets rows of a pass see later ones \(the ability"):
        model.forward([RowsInput(model.start(), [1], [0], torch.ones(1, 1, dtype=torch.bool))])
