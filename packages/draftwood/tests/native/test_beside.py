"""Passes of two models at the same time, each with the bits that it has alone."""

import threading

import torch

from draftwood.models.native import NativeModel
from draftwood.native.threads import threads, work_beside
from draftwood.testing import tiny_llama

PASSES = 40


def test_passes_beside_each_other_keep_their_bits() -> None:
    models = [NativeModel(tiny_llama(seed, layers=3)) for seed in range(2)]

    def logits(model: NativeModel, count: int) -> torch.Tensor:
        session = model.start()
        found = [
            session.extend([step % 60, 7, step % 5], keep="last").logits for step in range(count)
        ]
        session.close()
        return torch.cat(found)

    alone = [logits(model, PASSES) for model in models]
    found: list[torch.Tensor] = []
    number: list[int] = []

    def beside() -> None:
        work_beside(1)
        number.append(threads())
        found.append(logits(models[1], PASSES))

    before, other = threads(), threading.Thread(target=beside)
    other.start()
    while other.is_alive():
        assert torch.equal(logits(models[0], PASSES), alone[0])
    other.join()
    assert torch.equal(found[0], alone[1])
    assert number == [1]
    assert threads() == before
