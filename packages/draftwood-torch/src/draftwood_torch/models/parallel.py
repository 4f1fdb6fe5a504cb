"""A model that several processes hold in parts, driven by the first of them.

Transformers splits the matrices (``tp_plan="auto"``). The first process alone drafts, verifies and
decides; before each pass, and each move in the cache, it tells the others what to do. So clocks,
drafts and random numbers need not agree.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from draftwood.models.model import ModelOutput
from draftwood.models.parts import PackedInput
from draftwood.storage.ranks import rank
from draftwood_torch.models.pool import CachePool, LayerShape
from draftwood_torch.models.transformers import TransformersModel, layer_shapes

IDLE = timedelta(days=365)  # others wait for the next pass as long as a server has nothing to do


class Channel:
    """The first process's orders to the others, one after the other."""

    def __init__(self) -> None:
        self.group: Any = dist.new_group(backend="gloo", timeout=IDLE)

    def tell(self, *message: object) -> None:
        """Say what is done next.

        Raises:
            OSError: where another process is gone.
        """
        try:
            dist.broadcast_object_list([message], src=0, group=self.group)
        except RuntimeError as error:
            raise lost() from error

    def hear(self) -> tuple[Any, ...]:
        """Wait for what is done next."""
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0, group=self.group)
        return message[0]


def lost() -> OSError:
    """The error where another process is gone."""
    return OSError(
        "another process that holds a part of the model has ended; start again, and where memory"
        " ran out with more processes or a smaller --dtype"
    )


class LeadingPool(CachePool):
    """The first process's share of the cache; the others do with theirs what happens to it."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        channel: Channel,
    ) -> None:
        super().__init__(layers, dtype, device)
        self.channel = channel

    def write(self, slot: int, index: int, keys: Tensor, values: Tensor, length: int) -> None:
        raise ValueError("a model in several processes takes no cache that was computed elsewhere")

    def _resize(self, slots: int, capacity: int) -> None:
        self.channel.tell("resize", slots, capacity)
        super()._resize(slots, capacity)

    def _clear(self, slot: int, start: int, end: int) -> None:
        self.channel.tell("clear", slot, start, end)
        super()._clear(slot, start, end)

    def _move(self, slot: int, start: int, path: Sequence[int]) -> None:
        self.channel.tell("move", slot, start, list(path))
        super()._move(slot, start, path)

    def _duplicate(self, source: int, target: int, length: int) -> None:
        self.channel.tell("duplicate", source, target, length)
        super()._duplicate(source, target, length)


class FollowingPool(CachePool):
    """The share of another process."""

    def follow(self, act: str, *given: Any) -> None:
        """Do what the first process did."""
        acts = {"resize": self._resize, "clear": self._clear, "move": self._move}
        (acts | {"duplicate": self._duplicate})[act](*given)


class LeadingModel(TransformersModel):
    """The whole model, as the first process sees it.

    Passes through some of the layers, and embedding and head by themselves, are not offered.
    """

    def __init__(self, hf_model: PreTrainedModel, channel: Channel) -> None:
        pool = LeadingPool(layer_shapes(hf_model), hf_model.dtype, hf_model.device, channel)
        super().__init__(hf_model, pool)
        self.abilities &= {"hidden", "fork"}
        self.channel = channel

    def compute(self, parts: Sequence[PackedInput], hidden: Sequence[int]) -> list[ModelOutput]:
        self.channel.tell("run", list(parts), tuple(hidden))
        try:
            return super().compute(parts, hidden)
        except RuntimeError as error:
            if "onnection" in str(error) or "gloo" in str(error).lower():
                raise lost() from error
            raise

    def end(self) -> None:
        """Let the others go."""
        with suppress(OSError):  # they are gone
            self.channel.tell("end")


def follow(hf_model: PreTrainedModel, channel: Channel) -> None:
    """Run a part of every pass until the first process ends. Errors are those of the pass."""
    pool = FollowingPool(layer_shapes(hf_model), hf_model.dtype, hf_model.device)
    model = TransformersModel(hf_model, pool)
    while (message := channel.hear())[0] != "end":
        act, *given = message
        if act == "run":
            model.compute(*given)
        else:
            pool.follow(act, *given)


def join(processes: int, device: torch.device) -> None:
    """Meet the other processes.

    Raises:
        ValueError: where torchrun started another number of them.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if rank() is None or started != processes:
        raise ValueError(
            f"a model over {processes} processes needs torchrun --nproc-per-node={processes},"
            f" which started {started}; the commands do so by themselves with --tp {processes}"
        )
    if not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=IDLE)


def stay_behind() -> None:
    """Leave the terminal and its signals to the first process, and end when that ends."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
