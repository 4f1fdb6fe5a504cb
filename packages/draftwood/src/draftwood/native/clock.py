"""Measure the phases of forward passes, thread by thread."""

import torch
from jaxtyping import Float
from torch import Tensor

PARTS = ("products", "attention", "norms", "waiting")
"""As clock.h numbers them: matrix products (of the network's with their activation and encoding);
attention; norms, encoding, rotary embedding and the cache's new places; waiting for a task.
"""


class PhaseClock:
    """Seconds of each thread's parts, by forward pass.

    Attributes:
        runs: per forward pass seconds [threads parts]; the parts of a thread add up to the time of
            the C++ call.
    """

    def __init__(self) -> None:
        self.runs: list[Float[Tensor, "threads parts"]] = []

    def next_run(self, threads: int) -> int:
        """The address of an array for the next forward pass."""
        self.runs.append(torch.zeros(threads, len(PARTS), dtype=torch.float64))
        return self.runs[-1].data_ptr()

    def median(self) -> Float[Tensor, "threads parts"]:
        """Phases of the forward pass of median time, so that they still add up.

        Raises:
            ValueError: before the first pass.
        """
        if not self.runs:
            raise ValueError("the clock has seen no forward pass; make one first")
        by_time = sorted(self.runs, key=lambda each: float(each[0].sum()))
        return by_time[len(by_time) // 2]
