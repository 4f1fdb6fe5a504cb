"""Measure the phases of forward passes by number of nodes."""

import time
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.costs.curve import LENGTH, tree_parents
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native.clock import PhaseClock
from draftwood.tree import DraftTree

ROUNDS = 31


def measure_phases(
    model: Model,
    sizes: Sequence[int],
    length: int = LENGTH,
    seconds: float = 3.0,
    *,
    advance: Callable[[], None] = lambda: None,
) -> dict[int, Float[Tensor, "threads parts"]]:
    """Seconds of each thread's parts (``native.clock.PARTS``) in a median pass of each size.

    Sizes take turns, so that a noisy moment hurts all alike; the first pass of each warms up.

    Args:
        sizes: numbers of nodes, the root counted.
        length: committed tokens before the tree.
        seconds: time after which no further round begins; one is made in any case.
        advance: called after every round.

    Raises:
        ValueError: for a model that does not run in C++, and for sizes below 1.
    """
    if not isinstance(model, NativeModel):
        raise ValueError(
            "only models of the native path tell where their time goes; take a Llama-shaped model"
            " on a CPU with a C++ compiler"
        )
    if not sizes or min(sizes) < 1:
        raise ValueError(f"a pass has at least one node, the root; got sizes {list(sizes)}")
    random, end = torch.Generator().manual_seed(0), time.perf_counter() + seconds
    limit = model.context_length
    if limit is not None:
        length = max(1, min(length, limit // 2))

    def tokens(count: int) -> list[int]:
        return torch.randint(model.vocab_size, (count,), generator=random).tolist()

    trees = {size: DraftTree.of(tokens(size), tree_parents(size)) for size in sizes}
    clocks = {size: PhaseClock() for size in sizes}
    session = model.start()
    try:
        session.extend(tokens(length), keep="last")
        for size in sizes:
            session.forward(trees[size])
        for _ in range(ROUNDS):
            for size in sizes:
                model.clock = clocks[size]
                session.forward(trees[size])
            advance()
            if time.perf_counter() > end:
                break
    finally:
        model.clock = None
        session.close()
    return {size: clock.median() for size, clock in clocks.items()}
