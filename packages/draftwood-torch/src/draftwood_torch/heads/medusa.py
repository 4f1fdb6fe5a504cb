"""Medusa and Hydra heads: one for each next place, all reading one state of the target."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.medusa import MedusaConfig
from draftwood_torch.heads.layers import RmsNorm


class MedusaHead(nn.Module):
    """Draft several places after one state of the target, each with a head of its own.

    Row t is the target's state h at place t. The token at t + 1 is the root of the draft tree, and
    the head of level i = 0, 1, .. drafts the token at t + 2 + i.

    Medusa (Cai et al. 2024, arXiv:2401.10774): the head's state is h + SiLU(A h), A being zero at
    first, and a matrix makes logits of it. Here this matrix is the target's own output head for the
    draft vocabulary, and it stays as it is. The paper gives each head a trained copy of it, which
    would be nearly all of its weights.

    Hydra (Ankner et al. 2024, arXiv:2402.05109): the head of level i also reads the embeddings of
    the tokens from t + 1 to t + 1 + i, so that its draft depends on those before it. A projection
    makes one state of all that it reads; at first it adds what it makes of tokens to h.
    """

    config_type: ClassVar[type[MedusaConfig]] = MedusaConfig

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config, dim = config, config.sizes.hidden
        blocks = [nn.Linear(dim, dim, bias=False) for _ in range(config.heads)]
        for block in blocks:
            nn.init.zeros_(block.weight)
        self.blocks = nn.ModuleList(blocks)
        if config.tokens(0):
            counts = [1 + config.tokens(level) for level in range(config.heads)]
            projections = [nn.Linear(count * dim, dim, bias=False) for count in counts]
            with torch.no_grad():
                for projection in projections:
                    projection.weight[:, :dim] = torch.eye(dim)
            self.token_norm = RmsNorm(dim, config.sizes.epsilon)
            self.projections = nn.ModuleList(projections)

    def forward(
        self,
        level: int,
        state: Float[Tensor, "... dim"],
        embedded: Float[Tensor, "... tokens dim"],
    ) -> Float[Tensor, "... dim"]:
        """The states of one level that the output head reads.

        Args:
            level: of the head; level 0 drafts the token behind the root.
            state: the target's.
            embedded: the target's embedding of the ``config.tokens(level)`` tokens that this head
                reads, the root's first.
        """
        if self.config.tokens(level):
            read = torch.cat([state, self.token_norm(embedded).flatten(-2)], dim=-1)
            state = self.projections[level](read)
        return state + functional.silu(self.blocks[level](state))
