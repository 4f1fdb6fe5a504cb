"""Average the weights of a drafter over its last steps."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from draftwood_train.checkpoints import Checkpoint, copied

HORIZON = 50
"""Steps after which an average that begins with the training forgets: a running mean before, an
exponential one from then on.
"""


@torch.no_grad()
def average(state: Checkpoint, head: nn.Module, horizon: float = math.inf) -> None:
    """Take the weights of one more step into the average of a training.

    Args:
        horizon: steps after which it forgets; by default it is the mean of all.
    """
    state.averaged_steps += 1
    if not state.averaged:
        state.averaged = copied(head)
        return
    share = 1 / min(state.averaged_steps, horizon)
    for name, weight in head.state_dict().items():
        state.averaged[name].lerp_(weight.detach().cpu(), share)


@contextmanager
def averaged_weights(state: Checkpoint, head: nn.Module) -> Iterator[None]:
    """Give a head the averaged weights for a while, where there are some."""
    if not state.averaged:
        yield
        return
    own = copied(head)
    head.load_state_dict(state.averaged)
    try:
        yield
    finally:
        head.load_state_dict(own)
