"""Packed rows hold each text once, in an order that can be taken up anywhere."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from draftwood_train.data.texts import TextsInMemory
from draftwood_train.packing import TextPiece, first_fit, pieces_of
from training_cases import packing, texts


def test_every_place_of_every_text_is_packed_once_an_epoch() -> None:
    some = texts(20, seed=1, most=60)
    packed = packing(some, places=24)
    found = sorted(
        (piece.text, place)
        for batch in packed.plan(0)
        for row in batch
        for piece in row
        for place in range(piece.start, piece.stop)
    )
    assert found == [(n, place) for n, length in enumerate(some.lengths) for place in range(length)]
    assert all(sum(map(len, row)) <= 24 for batch in packed.plan(0) for row in batch)


def test_pieces_without_an_answer_are_left_out() -> None:
    some = texts(1, seed=1, most=9)
    long = TextsInMemory([some[0].__class__(**{**vars(some[0]), "answer": 6})])
    assert pieces_of(long, 4) == [TextPiece(0, 4, 8)]  # type: ignore[arg-type]
    both = [TextPiece(0, 0, 4), TextPiece(0, 4, 8)]
    assert pieces_of(long, 4, prompts=True) == both  # type: ignore[arg-type]
    whole = replace(packing(long, places=4, seed=None), prompts=True)
    assert whole.plan(0) == [[[each] for each in both]]


def test_first_fit_fills_rows() -> None:
    pieces = [TextPiece(n, 0, length) for n, length in enumerate([6, 5, 4, 3, 2])]
    rows = first_fit(pieces, 10)
    assert [[piece.text for piece in row] for row in rows] == [[0, 2], [1, 3, 4]]


def test_rows_hold_what_the_texts_say() -> None:
    some = texts(7, seed=2)
    packed = packing(some)
    batch = packed.plan(0)[0]
    rows = packed.packed(batch)
    for number, row in enumerate(batch):
        at = 0
        for segment, piece in enumerate(row):
            here, there = (number, slice(at, at + len(piece))), slice(piece.start, piece.stop)
            text = some[piece.text]
            assert torch.equal(rows.tokens[here], text.tokens[there])
            assert torch.equal(rows.states[here], text.states[there][:, [0, 1]])
            assert torch.equal(rows.final[here], text.states[there][:, 2])
            assert torch.equal(rows.log_normalizer[here], text.log_normalizer[there])
            assert torch.equal(rows.is_answer[here], torch.arange(piece.start, piece.stop) >= 3)
            assert bool((rows.segments[here] == segment).all())
            assert bool((rows.is_greedy[here] == text.is_greedy).all())
            at += len(piece)
        assert bool((rows.segments[number, at:] == -1).all())


def test_batches_go_on_from_any_number_and_by_strides() -> None:
    packed = packing(texts(20, seed=1))
    whole = [rows.tokens for rows in islice(packed.batches(), 25)]
    assert len(packed.plan(0)) < 12  # several epochs
    later = [rows.tokens for rows in islice(packed.batches(9), 16)]
    assert all(torch.equal(a, b) for a, b in zip(whole[9:], later, strict=True))
    strided = [rows.tokens for rows in islice(packed.batches(1, 3), 8)]
    assert all(torch.equal(a, b) for a, b in zip(whole[1::3], strided, strict=True))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    some = texts(20, seed=1)
    plans = [packing(some, seed=seed).plan(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for n, a in enumerate(plans) for b in plans[n + 1 :])
    assert packing(some, seed=1).plan(1) == plans[3]


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no answers to learn from"):
        next(packing(TextsInMemory()).batches())
