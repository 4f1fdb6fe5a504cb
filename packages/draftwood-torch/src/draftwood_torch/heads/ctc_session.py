"""One text of a CTC head that PyTorch runs."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.arrays import as_array
from draftwood.drafters.ctc_drafter import CtcDrafter, CtcSession
from draftwood.drafters.drafter import DraftRequest
from draftwood.models.model import CHUNK
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.layers import HeadCache
from draftwood_torch.tensors import as_tensor


class TorchCtcSession(CtcSession):
    """The head in PyTorch.

    Attributes:
        cache: rows of the text so far.
        states: the target's, at late tokens.
    """

    def __init__(self, drafter: CtcDrafter, request: DraftRequest) -> None:
        super().__init__(drafter, request)
        config, self.placed = drafter.config, drafter.placed
        self.head: CtcHead = self.placed.network
        self.cache = HeadCache(config.layers, config.sizes, self.head.frame_weight)
        self.states: list[Float[Tensor, "places reads dim"]] = []

    @torch.no_grad()
    def learn(self, states: list[Any], path: list[int]) -> None:
        self.states.append(torch.stack([as_tensor(each)[path] for each in states], dim=-2))

    def forget(self) -> None:
        self.states = []

    @torch.no_grad()
    def take_in(self, following: list[int]) -> Float[Tensor, "frames dim"]:
        states, frames = torch.cat(self.states), None
        dtype = self.placed.dtype
        for first in range(0, len(following), CHUNK):
            tokens = torch.tensor(following[first : first + CHUNK], device=states.device)
            embedded = as_tensor(self.drafter.target.embeddings_and_head.embed(tokens)).to(dtype)
            new = states[first : first + len(tokens)].to(dtype)
            rows = self.head.rows(self.head.combine(new), embedded)
            frames = self.head.draft(self.cache, rows)
        assert frames is not None  # there is a token to follow
        self.states = [states[len(following) :]]
        return frames

    @torch.no_grad()
    def probs(self, following: list[int]) -> Float[np.ndarray, "frames symbols"] | None:
        states = self.take_in(following)
        log_probs = self.head.symbols(states, self.placed.logits(states))
        probs = as_array(log_probs.exp())
        return None if np.isnan(probs).any() else probs
