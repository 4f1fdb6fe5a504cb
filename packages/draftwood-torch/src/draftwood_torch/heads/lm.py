"""Draft LM: a small decoder of the target's shape that reads tokens alone."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.lm import LmConfig
from draftwood_torch.heads.layers import AttentionRule, RmsNorm, TokenHead


class LmHead(TokenHead):
    """Drafts as a language model of its own, between the target's embedding and output head.

    Trained by distillation (DistillSpec, Zhou et al. 2024, arXiv:2310.08461). Row t reads the token
    at place t and gives the state from which the token at t + 1 follows. A projection behind the
    target's embedding, which starts as the identity, lets layers of the middle of a target read it.

    The embedding of tokens and the rows of the output head are the target's and not part of it.
    """

    config_type: ClassVar[type[LmConfig]] = LmConfig

    def __init__(self, config: LmConfig) -> None:
        super().__init__(config.sizes, config.layers)
        self.config, sizes = config, config.sizes
        self.norm = RmsNorm(sizes.hidden, sizes.epsilon)
        if config.acceptance:
            self.acceptance = AcceptanceHead(sizes.hidden, config.acceptance)

    def forward(
        self,
        embedded: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows"],
        attend: AttentionRule,
    ) -> Float[Tensor, "... rows dim"]:
        """The states that the output head reads.

        Args:
            embedded: the target's embedding of the tokens.
            positions: of the tokens, for the rotary embedding.
            attend: which rows see which.
        """
        return self.norm(self.read(embedded, positions, attend))


class AcceptanceHead(nn.Module):
    """Predicts the chance that the target accepts the token which a row read.

    SpecDec++ (Huang et al. 2024, arXiv:2405.19715): residual blocks x + SiLU(W x) over the draft
    model's last state, then one logit.

    Differs from the paper's code: its blocks share their weights, and it has two logits.

    Args:
        dim: entries of a state.
        blocks: at least one.
    """

    def __init__(self, dim: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(dim, dim) for _ in range(blocks))
        self.out = nn.Linear(dim, 1)
        for weight in self.blocks.parameters():
            if weight.ndim == 2:
                nn.init.zeros_(weight)

    def forward(self, states: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
        """Logits of the chances."""
        for block in self.blocks:
            states = states + functional.silu(block(states))
        return self.out(states)[..., 0]
