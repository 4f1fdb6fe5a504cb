"""CUDA graphs imitated on the CPU: operations are recorded once and repeated on the same memory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = {
    torch.ops.aten._local_scalar_dense.default,  # the host asks for a number
    torch.ops.aten.nonzero.default,
    torch.ops.aten.lift_fresh.default,  # a tensor from the host's numbers
}


class Tape(TorchDispatchMode):
    """Operations on fixed tensors. Whatever Python computed between them is not done again.

    Raises:
        RuntimeError: for operations that wait for the device, as recording a CUDA graph does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in WAITING:
            raise RuntimeError(f"{func} waits for the device")
        kwargs = kwargs or {}
        given = func(*args, **kwargs)
        self.steps.append((func, args, kwargs, given))
        return given

    def play(self) -> None:
        for func, args, kwargs, given in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(given), tree_leaves(again), strict=True):
                if (
                    isinstance(old, Tensor)
                    and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr()
                ):
                    old.copy_(new)


def record(work: Callable[[], None]) -> Callable[[], None]:
    """Record what work does on a tape."""
    tape = Tape()
    with tape:
        work()
    return tape.play
