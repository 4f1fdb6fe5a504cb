"""Insertion: the loss of gaps, and lists that are written in few passes."""

import math

import pytest
import torch
from torch import Tensor

from draftwood_diffusion.training.decoder import DecoderSizes, Sight, StreamDecoder, random_decoder
from draftwood_diffusion.training.insertion import Insertion

BEGIN, END, ITEMS, LENGTH = 10, 11, 8, 5


def decoder_of(dim: int = 48) -> StreamDecoder:
    sizes = DecoderSizes(12, dim, 2 * dim, 2, 4, 4, 12, 1e-5, 1e4, True, True, True)
    return random_decoder(sizes, dim**-0.5)


def test_loss_is_that_of_the_definition() -> None:
    decoder, insertion = decoder_of(), Insertion(BEGIN, END, sharpness=0.7)
    prompts, texts = (
        torch.tensor([[3, 1], [2, 2]]),
        torch.tensor([[4, 5, 6, 7, 8], [9, 1, 0, 2, 3]]),
    )
    with torch.no_grad():
        found = insertion.loss(decoder, prompts, texts, 2, torch.Generator().manual_seed(4))
    chosen = torch.rand(2, 5, generator=torch.Generator().manual_seed(4)).argsort(1)[:, :2]
    total = 0.0
    for prompt, text, places in zip(prompts, texts, chosen, strict=True):
        shown = sorted(places.tolist())
        rows = torch.tensor([[*prompt, BEGIN, *(text[place] for place in shown)]])
        every = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool)
        with torch.no_grad():
            states = decoder(rows[:, None], Sight(every, every))[0, 0, 2:]
            logs = decoder.logits(states).log_softmax(-1)
        for gap, (low, high) in enumerate(zip([-1, *shown], [*shown, 5], strict=True)):
            inside = range(low + 1, high)
            near = [math.exp(-0.7 * abs(place - (low + high) / 2)) for place in inside]
            total -= sum(
                share / sum(near) * float(logs[gap, text[place]])
                for share, place in zip(near, inside, strict=True)
            )
            total -= 0.0 if inside else float(logs[gap, END])
    assert float(found) == pytest.approx(total / 6, rel=1e-5)


class Endless(Insertion):
    """Every gap takes a token in every pass."""

    def _logs(self, decoder: StreamDecoder, prompts: Tensor, shown: Tensor) -> Tensor:
        assert shown.shape[1] <= LENGTH
        return -torch.eye(END + 1)[END].expand(1, shown.shape[1] + 1, -1)


def test_a_text_ends_once_it_is_longer_than_a_right_one() -> None:
    text, passes = Endless(BEGIN, END).written(decoder_of(), torch.tensor([3, 1]), 18, LENGTH)
    assert (text, passes) == ([0] * 7, 3)


def exercise(count: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lists, and the same in ascending order."""
    lists = torch.rand(count, ITEMS, generator=chance).argsort(1)[:, :LENGTH]
    return lists, lists.sort(1).values


@pytest.mark.proof
def test_a_list_is_sorted_in_few_passes() -> None:
    decoder, insertion = decoder_of(), Insertion(BEGIN, END)
    chance = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    assert right(decoder, insertion)[0] == 0  # untrained, it knows none
    for step in range(300):
        prompts, texts = exercise(64, chance)
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * min(1.0, 2 - step / 150)
        loss = insertion.loss(decoder, prompts, texts, step % (LENGTH + 1), chance)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = right(decoder, insertion)
    assert after[0] >= 30, after
    assert after[1] < 4.5  # of five items one by one, it would be six


def right(decoder: StreamDecoder, insertion: Insertion) -> tuple[int, float]:
    """Lists of 40 that come out right, and their passes on average."""
    prompts, texts = exercise(40, torch.Generator().manual_seed(9))
    made = [insertion.written(decoder, each, 12, LENGTH) for each in prompts]
    count = sum(found == text.tolist() for (found, _), text in zip(made, texts, strict=True))
    return count, sum(passes for _, passes in made) / len(made)
