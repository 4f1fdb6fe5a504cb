"""Measure the phases of forward passes, thread by thread and by number of nodes."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from draftwood.arrays import Float, address_of
from draftwood.costs.curve import LENGTH, tree_parents
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import structures
from draftwood.tree import DraftTree

ROUNDS = 31
PARTS = ("products", "attention", "norms", "waiting")
"""As clock.h numbers them: matrix products (of the network's with their activation and encoding; of
few rows on few threads also the norms and encoding before them); attention; norms and encoding of
other rows, rotary embedding and the cache's new places; waiting for a task.
"""


class PhaseClock:
    """Seconds of each thread's parts, by forward pass.

    Attributes:
        runs: per forward pass seconds [threads parts]; the parts of a thread add up to the time of
            the C++ call.
    """

    def __init__(self) -> None:
        self.runs: list[Float[np.ndarray, "threads parts"]] = []

    def next_run(self, run: structures.CForwardInput, threads: int) -> int:
        """Have the next forward pass fill an array; gives its number of threads."""
        self.runs.append(np.zeros((threads, len(PARTS))))
        run.seconds = address_of(self.runs[-1])
        return threads

    def median(self) -> Float[np.ndarray, "threads parts"]:
        """Phases of the forward pass of median time, so that they still add up.

        Raises:
            ValueError: before the first pass.
        """
        if not self.runs:
            raise ValueError("the clock has seen no forward pass; make one first")
        by_time = sorted(self.runs, key=lambda each: float(each[0].sum()))
        return by_time[len(by_time) // 2]


def measure_phases(
    model: Model,
    sizes: Sequence[int],
    seconds: float = 3.0,
    *,
    advance: Callable[[], None] = lambda: None,
) -> dict[int, Float[np.ndarray, "threads parts"]]:
    """Seconds of each thread's parts (``PARTS``) in a median pass of each size.

    Sizes take turns, so that a noisy moment hurts all alike; the first pass of each warms up.

    Args:
        sizes: numbers of nodes, the root counted.
        seconds: time after which no further round begins; one is made in any case.
        advance: called after every round.

    Raises:
        ValueError: for a model that does not run in C++, and for sizes below 1 or above what the
            model's context has room for.
    """
    if not isinstance(model, NativeModel):
        raise ValueError(
            "only models of the native path tell where their time goes; take a Llama-shaped model"
            " on a CPU with a C++ compiler"
        )
    if not sizes or min(sizes) < 1:
        raise ValueError(f"a pass has at least one node, the root; got sizes {list(sizes)}")
    random, end = np.random.default_rng(0), time.perf_counter() + seconds
    length, limit = LENGTH, model.context_length
    if limit is not None:
        length = max(1, min(length, limit // 2))
        if max(sizes) > limit - length:
            raise ValueError(
                f"{max(sizes)} nodes do not fit the model's context of {limit} tokens behind"
                f" {length}; take at most {limit - length}"
            )

    def tokens(count: int) -> list[int]:
        return random.integers(model.vocab_size, size=count).tolist()

    trees = {size: DraftTree.of(tokens(size), tree_parents(size)) for size in sizes}
    clocks = {size: PhaseClock() for size in sizes}
    session = model.start()
    try:
        session.extend(tokens(length), keep="last")
        for size in sizes:
            session.forward(trees[size])
        for _ in range(ROUNDS):
            for size in sizes:
                model.clock = clocks[size].next_run
                session.forward(trees[size])
            advance()
            if time.perf_counter() > end:
                break
    finally:
        model.clock = None
        session.close()
    return {size: clock.median() for size, clock in clocks.items()}
