"""The order-agnostic last layer: a model that mends errors behind it."""

import pytest
import torch
from torch import Tensor

from draftwood_diffusion.training.decoder import DecoderSizes, StreamDecoder
from draftwood_diffusion.training.noise import Grid
from draftwood_diffusion.training.order_agnostic import OrderAgnostic, corrupted

ITEMS, TIMES, PLACES = 10, 3, 12


def model_of() -> OrderAgnostic:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = StreamDecoder(DecoderSizes(10, 48, 96, 2, 4, 2, 12, 1e-5, 1e4, True, True, True))
        for weight in decoder.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=48**-0.5)
    return OrderAgnostic(decoder)


def lines(count: int, chance: torch.Generator) -> Tensor:
    """Lines that say each of four items three times."""
    items = torch.randint(ITEMS, (count, PLACES // TIMES), generator=chance)
    return items.repeat_interleave(TIMES, dim=1)


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
    changed[0, 7] = (changed[0, 7] + 1) % ITEMS
    with torch.no_grad():
        before, after = model.logits(texts), model.logits(changed)
    assert torch.equal(before[:, :, :7], after[:, :, :7])
    assert not torch.equal(before[:, :, 7:], after[:, :, 7:])


@pytest.mark.proof
def test_injected_errors_are_mended_by_rows_that_look_back() -> None:
    model, chance = model_of(), torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.decoder.parameters(), lr=4e-3)
    for step in range(300):
        texts = lines(32, chance)
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1.0, 2 - step / 150)
        loss = model.loss(texts, corrupted(texts, 0.15, ITEMS, chance))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    texts = lines(200, torch.Generator().manual_seed(9))
    places = torch.arange(200) % 3 * TIMES  # where an item is said first
    broken, rows = texts.clone(), torch.arange(200)
    broken[rows, places] = (broken[rows, places] + 3) % ITEMS
    right = texts[rows, places]
    mended, control = (
        float((model.corrected(broken, looks_back=back)[rows, places] == right).float().mean())
        for back in (True, False)
    )
    assert mended > 0.8, (mended, control)
    assert control < 0.4, (mended, control)  # rows before it cannot know
