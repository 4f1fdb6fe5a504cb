"""Trained heads on a target's device: their networks, and the output rows of what they draft."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood_torch.tensors import as_tensor

OutputHead = Callable[[Float[Tensor, "rows dim"]], Float[Tensor, "rows draft_vocab"]]
"""Logits of the draft vocabulary after normed states."""


@dataclass(frozen=True, eq=False)
class PlacedHead:
    """A head beside its target.

    Attributes:
        network: on the target's device.
        dtype: of its weights.
        logits: output head of the draft vocabulary.
    """

    network: Any
    dtype: torch.dtype
    logits: OutputHead


def placed(trained: TrainedHead, target: Model) -> PlacedHead:
    """Bring a head to its target, in float32 on the host and in the target's type elsewhere."""
    device, dtype = str(target.device), _working_dtype(target)
    network = trained.network
    if target.device.type != "cpu":
        network = deepcopy(network).to(device, dtype)
    own = getattr(network, "own_rows", None)
    return PlacedHead(network, dtype, _output_head(trained, target, dtype, own))


def _working_dtype(target: Model) -> torch.dtype:
    """Choose the type of a drafter's weights: the target's on an accelerator, floats on a CPU."""
    if target.device.type == "cpu":
        return torch.float32
    return target.embeddings_and_head.embed(np.zeros(1, np.int64)).dtype


def _output_head(
    trained: TrainedHead,
    target: Model,
    dtype: torch.dtype,
    rows: Float[Tensor, "draft_vocab dim"] | None,
) -> OutputHead:
    """Choose what gives logits of the draft vocabulary.

    On the native path the target's head gives the logits, from weights of 8 bits and without a copy
    of them; for 8,000 tokens this takes a fifth of the time of rows in floats. Elsewhere the rows
    and what they add are copied once, scaled as the target's logits are; they would be gathered for
    each call.

    Args:
        dtype: of the rows.
        rows: of an output head of the drafter's own, in the place of the target's.
    """
    head, tokens = target.embeddings_and_head, torch.from_numpy(trained.draft_tokens)
    bias = None
    if rows is None and not isinstance(target, NativeModel):
        rows = as_tensor(trained.rows_of(target)).to(str(target.device), dtype)
        if head.weights().head_bias is not None:
            nothing = np.zeros((1, target.hidden_size), np.float32)
            bias = as_tensor(head.logits(nothing, tokens, normed=True))[0].to(rows)

    def logits(states: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows draft_vocab"]:
        """Logits after states that went through the drafter's norm."""
        if rows is None:
            return as_tensor(head.logits(states, tokens, normed=True))
        return functional.linear(states, rows, bias).float()

    return logits
