"""The order-agnostic last layer: a model that mends errors behind it."""

import pytest
import torch
from torch import Tensor

from draftwood_diffusion.training.decoder import DecoderSizes, random_decoder
from draftwood_diffusion.training.noise import Grid
from draftwood_diffusion.training.order_agnostic import OrderAgnostic, corrupted

ITEMS, TIMES, PLACES = 9, 3, 12
SEPARATOR, STEPS = ITEMS, 300


def model_of() -> OrderAgnostic:
    sizes = DecoderSizes(10, 48, 96, 2, 4, 2, 12, 1e-5, 1e4, True, True, True)
    return OrderAgnostic(random_decoder(sizes, 48**-0.5))


def lines(count: int, chance: torch.Generator) -> Tensor:
    """Lines that say each of three items three times, and a separator."""
    items = torch.randint(ITEMS, (count, 3, 1), generator=chance).expand(-1, -1, TIMES)
    return torch.cat([items, torch.full((count, 3, 1), SEPARATOR)], dim=2).flatten(1)


def test_a_row_that_predicts_its_own_place_is_the_decoders_own() -> None:
    model = model_of()
    texts = lines(2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = model.decoder(texts[:, None], Grid(PLACES, 0, 1).sight(True))[:, 0]
        found = model.logits(texts)
    torch.testing.assert_close(found[:, model.back], model.decoder.logits(states))
    assert not torch.allclose(found[:, model.back], found[:, model.back + 1])


def test_no_row_sees_later_ones() -> None:
    model, texts = model_of(), lines(1, torch.Generator().manual_seed(0))
    changed = texts.clone()
    changed[0, 7] = (changed[0, 7] + 1) % SEPARATOR
    with torch.no_grad():
        before, after = model.logits(texts), model.logits(changed)
    assert torch.equal(before[:, :, :7], after[:, :, :7])
    assert not torch.equal(before[:, :, 7:], after[:, :, 7:])


@pytest.mark.proof
def test_injected_errors_are_mended_by_rows_that_look_back() -> None:
    model, chance = model_of(), torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.decoder.parameters(), lr=4e-3)
    for _ in range(STEPS):
        texts = lines(32, chance)
        loss = model.loss(texts, corrupted(texts, 0.2, ITEMS + 1, chance))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.decoder.parameters(), 1.0)
        optimiser.step()
    texts = lines(200, torch.Generator().manual_seed(9))
    places = torch.arange(200) % 3 * (TIMES + 1)  # where an item is said first
    broken, rows = texts.clone(), torch.arange(200)
    broken[rows, places] = (broken[rows, places] + 3) % ITEMS
    right = texts[rows, places]
    mended, control = (
        float((model.corrected(broken, looks_back=back)[rows, places] == right).float().mean())
        for back in (True, False)
    )
    assert mended > 0.35, (mended, control)
    assert control < 0.25, (mended, control)  # rows before it cannot know
