"""Blocks of mask tokens: what each slot reads, that training and drafting agree, what is learnt."""

from dataclasses import replace

import pytest
import torch

from draftwood_methods.heads.dflash import DflashHead
from draftwood_train.judging import all_counted, means
from draftwood_train.packed_frames import drawn
from draftwood_train.recipe import PackedRows
from draftwood_train.recipes.dflash import (
    DflashRecipe,
    counted_slots,
    row_of,
    slot_states,
)
from training_cases import LAYERS, STORED, VOCAB, packing, target, texts, trained

RECIPE = DflashRecipe(frames=3, pairwise=4, features="last", anchors=8)


def some_rows(seed: int = 0) -> PackedRows:
    return all_counted(next(packing(texts(12, seed), reads=(STORED[-1],)).batches()))


def noisy(recipe: DflashRecipe) -> DflashHead:
    """A head whose parts all matter."""
    head = trained(recipe, some_rows(), 0)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return head


def test_every_slot_learns_its_place() -> None:
    rows = some_rows()
    found = []
    for steps in (0, 80):
        judged = RECIPE.judge(trained(RECIPE, rows, steps), rows, target())
        assert judged.places > 10
        found.append(means(judged))
    before, after = found
    assert before["block_efficiency"] < 1.4
    assert after["block_efficiency"] > 1.5
    assert all(after[f"guess_{slot}"] > 0.15 for slot in range(1, 4))
    assert after["overlap"] > 3 * before["overlap"]


@pytest.mark.parametrize("window", [2048, 4])
def test_training_and_drafting_give_the_same_states(window: int) -> None:
    recipe = replace(RECIPE, window=window, layers=2)
    head, rows, own = noisy(recipe), some_rows(), target()
    known = (rows.positions == 7) & (rows.segments >= 0)
    row, place = next((r, p) for r, p in known.nonzero().tolist() if p < 20)
    begin = place - 7
    chosen = torch.zeros_like(rows.tokens, dtype=torch.bool)
    chosen[row, place] = True
    with torch.no_grad():
        wanted = slot_states(head, rows, own, chosen)[0]
        states = rows.states[row, begin : place + 1]
        cache = head.start()
        embedded = own.embedding[rows.tokens[row]]
        context = head.combine(states)
        head.draft(cache, context[:4], embedded[begin + 4])  # in two pieces
        slots = head.draft(cache, context[4:], embedded[place + 1])
        before = embedded[place + 2 : place + 4]
        found = torch.cat([slots[:1], head.corrected(slots[1:], before)])
    assert cache.length == place + 1 - begin
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_what_each_slot_reads() -> None:
    """A token changes blocks whose root it is, and the slot after it in blocks before; a state
    changes the blocks of its own and later places of its text alone.
    """
    head, rows, own = noisy(RECIPE), some_rows(), target()
    every = rows.segments >= 0
    width = rows.tokens.shape[1]

    def states(given: PackedRows) -> torch.Tensor:
        found = torch.zeros(*given.tokens.shape, 3, 16)
        with torch.no_grad():
            found[every] = slot_states(head, given, own, every)
        return found

    base, tokens, hidden = states(rows), rows.tokens.clone(), rows.states.clone()
    tokens[0, 10] = (tokens[0, 10] + 1) % VOCAB
    differs = (states(replace(rows, tokens=tokens)) - base).abs().amax(-1) > 1e-6
    expected = [[0, 7, 2], [0, 8, 1], [0, 9, 0], [0, 9, 1], [0, 9, 2]]
    assert differs.nonzero().tolist() == [each for each in expected if each[1] + each[2] <= width]
    hidden[0, 10] += 1.0
    changed = (states(replace(rows, states=hidden)) - base).abs().amax((-1, -2)) > 1e-6
    own_text = rows.segments == rows.segments[0, 10]
    after = torch.arange(width) >= 10
    assert torch.equal(changed, own_text & after & (torch.arange(len(rows.tokens))[:, None] == 0))


def test_only_answers_are_learnt() -> None:
    rows, head = some_rows(), trained(RECIPE, some_rows(), 0)
    none = replace(rows, is_answer=torch.zeros_like(rows.is_answer))
    loss, figures = RECIPE.loss(head, none, target(), 0.0)
    assert (loss.item(), figures) == (0.0, {})
    assert RECIPE.judge(head, none, target()).places == 0


def test_drawn_places_are_some_of_the_possible() -> None:
    possible = counted_slots(some_rows(), 3)[..., 0]
    for count in (2, 8, 100):
        chosen = drawn(possible, count)
        assert not bool((chosen & ~possible).any())
        assert torch.equal(chosen.sum(-1), possible.sum(-1).clamp(max=count))
    assert len(row_of(some_rows(), 1).tokens) == 1


def test_settings() -> None:
    assert DflashRecipe().reads(30) == (2, 15, 30)
    assert RECIPE.reads(LAYERS) == (6,)
    for wrong, message in (
        ({"frames": 0}, "frames, layers and anchors"),
        ({"window": 0}, "window must be whole numbers above 0"),
        ({"fades": 0.0}, "fades above 0"),
        ({"loss_name": "mse"}, "loss_name is one of"),
    ):
        with pytest.raises(ValueError, match=message):
            DflashRecipe(**wrong)  # type: ignore[arg-type]
