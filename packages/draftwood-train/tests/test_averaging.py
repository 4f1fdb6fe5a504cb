"""Averages of weights over the last steps of a training."""

import pytest
import torch
from torch import nn

from draftwood_train.averaging import HORIZON, average
from draftwood_train.checkpoints import Checkpoint


def averaged(steps: int, **more: float) -> float:
    head = nn.Linear(1, 1, bias=False)
    state = Checkpoint(settings={}, head={}, optimisers=[], random={})
    for step in range(steps):
        with torch.no_grad():
            head.weight.fill_(float(step))
        average(state, head, **more)
    return float(state.averaged["weight"])


def test_all_steps_of_a_share_weigh_alike() -> None:
    assert averaged(1001) == pytest.approx(500.0, rel=1e-3)


def test_an_average_of_a_whole_training_forgets_its_beginning() -> None:
    assert averaged(1001, horizon=HORIZON) == pytest.approx(1000 - (HORIZON - 1), rel=1e-3)
