"""All draft steps at all places of packed texts are what a drafter computes one by one."""

import pytest
import torch
from torch.nn import functional

from draftwood.heads.eagle import EagleConfig
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_train.unrolled import Unrolled, predicted_places, shifted
from training_cases import SIZES, packing, target, texts

STEPS = 3


def setting(layers: int, window: int | None) -> tuple[EagleHead, object]:
    torch.manual_seed(0)
    head = EagleHead(EagleConfig(SIZES, layers=layers, reads=(2, 3), window=window))
    rows = next(packing(texts(9, seed=3, most=13)).batches())
    assert int(rows.segments.max()) >= 1
    return head.eval().requires_grad_(False), rows


def unrolled(head: EagleHead, rows, segments: torch.Tensor) -> list[torch.Tensor]:
    attend, state, found = Unrolled(segments, head.config.window), head.combine(rows.states), []
    for step in range(STEPS):
        attend.next_step()
        embedded = target().embedding[shifted(rows.tokens, step + 1)]
        state, normed = head(embedded, state, rows.positions + step, attend)
        found.append(normed)
    return found


def one_by_one(head: EagleHead, rows, row: int, first: int, place: int) -> list[torch.Tensor]:
    """The steps after a place of a text that begins at ``first``, as a drafter takes them."""
    cache = HeadCache(head.config.layers, SIZES, torch.zeros(1))
    part = slice(first, place + 1)
    embedded = target().embedding[rows.tokens[row, first + 1 : place + 2]]
    count, window = place + 1 - first, head.config.window
    state, normed = head(
        embedded,
        head.combine(rows.states[row, part]),
        rows.positions[row, part],
        cache.attend(causal(count, window=window)),
    )
    state, found = state[-1:], [normed[-1]]
    for step in range(1, STEPS):
        embedded = target().embedding[rows.tokens[row, place + 1 + step]][None]
        seen = causal(1, cache.length, window)
        position = rows.positions[row, place][None] + step
        state, normed = head(embedded, state, position, cache.attend(seen))
        found.append(normed[0])
    return found


def differences(head: EagleHead, rows, segments: torch.Tensor) -> list[float]:
    steps, found = unrolled(head, rows, segments), []
    for row in range(len(rows.tokens)):
        for segment in range(int(rows.segments[row].max()) + 1):
            first = int((rows.segments[row] == segment).nonzero()[0])
            last = int((rows.segments[row] == segment).nonzero()[-1])
            for place in range(first, last - STEPS):
                true = one_by_one(head, rows, row, first, place)
                pairs = zip(steps, true, strict=True)
                found.append(max(float((a[row, place] - b).abs().max()) for a, b in pairs))
    return found


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("window", [None, 5])
def test_steps_equal_those_of_a_drafter_with_a_cache(layers: int, window: int | None) -> None:
    head, rows = setting(layers, window)
    found = differences(head, rows, rows.segments)
    assert len(found) > 20
    assert max(found) < 1e-5


def test_texts_that_see_each_other_are_noticed() -> None:
    head, rows = setting(1, None)
    assert max(differences(head, rows, rows.segments.clamp_max(0))) > 1e-3


def test_only_answers_are_predicted() -> None:
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1]])
    is_answer = torch.tensor([[False, False, True, True, False, True, True, False]])
    assert predicted_places(is_answer, segments).tolist() == [
        [False, True, True, True, True, True, True, False]
    ]


def test_shifting_fills_the_end() -> None:
    values = torch.arange(4)[None]
    assert shifted(values, 0) is values
    assert shifted(values, 3, -2).tolist() == [[3, -2, -2, -2]]
    assert functional.pad(values, (0, 1))[:, 1:].tolist() == shifted(values, 1).tolist()
