"""One text of Medusa's or Hydra's heads that PyTorch runs."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.arrays import as_array
from draftwood.drafters.medusa import MedusaSession
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood_torch.tensors import as_tensor


class TorchMedusaSession(MedusaSession):
    """Heads in PyTorch, level by level."""

    def learn(self, states: Any, row: int) -> None:
        self.state = as_tensor(states)[[row]].clone()

    @torch.no_grad()
    def propose(self, root: int, context: Context) -> DraftTree:
        return super().propose(root, context)

    def score(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits after the nodes from ``first`` on, each by the head of its level."""
        depths = tree.depths[first:].tolist()
        levels = {
            level: [node for node, depth in enumerate(depths, first) if depth == level]
            for level in sorted(set(depths))
        }
        rows = as_array(torch.cat([self._level(tree, *each) for each in levels.items()]))
        if len(levels) == 1:
            return rows
        order = [node - first for nodes in levels.values() for node in nodes]
        return rows[np.argsort(order)]

    def _level(
        self, tree: DraftTree, level: int, nodes: list[int]
    ) -> Float[Tensor, "nodes draft_vocab"]:
        placed, state = self.drafter.placed, self.state
        config = self.drafter.config
        assert state is not None  # the prompt is the first update
        count = config.tokens(level)
        asked = nodes if config.sees_drafted else nodes[:1]
        paths = [[0, *tree.path_to(node)][:count] for node in asked]
        tokens = torch.tensor([[tree.token_list[node] for node in path] for path in paths])
        state = state.to(str(self.drafter.target.device), placed.dtype).expand(len(asked), -1)
        states = placed.network(level, state, self._embedded(tokens.long()))
        return placed.logits(states).repeat(len(nodes) // len(asked), 1)

    def _embedded(self, tokens: Int[Tensor, "nodes tokens"]) -> Float[Tensor, "nodes tokens dim"]:
        target, dtype = self.drafter.target, self.drafter.placed.dtype
        device = str(target.device)
        if not tokens.numel():
            return torch.empty(*tokens.shape, target.hidden_size, device=device, dtype=dtype)
        embedded = target.embeddings_and_head.embed(tokens.flatten().to(device))
        return as_tensor(embedded).to(dtype).unflatten(0, tokens.shape)
