"""EAGLE head: decoder layers that continue the target's own hidden states."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.heads.eagle import EagleConfig
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads.layers import AttentionRule, DecoderLayer, Mlp, RmsNorm


class EagleHead(nn.Module):
    """Drafts the target's next states one by one, and tokens with the target's own output head.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840) with the norms of EAGLE-3.1 (arXiv:2605.09992). Row t
    reads the token at place t + 1 and the target's states at place t, and gives a state in the
    place of the one at t + 1, from which the token at t + 2 follows. Behind its first step a
    drafted state takes the place of the target's.

    ``feature_sampling`` and ``partial_alignment`` are those of FSPAD (Gui et al. 2024,
    arXiv:2408.15562), except that what the output head reads is normed first.

    The embedding of tokens is the target's and not part of it, nor are the rows of the output head
    unless ``own_head`` says so.
    """

    config_type: ClassVar[type[EagleConfig]] = EagleConfig

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config, sizes = config, config.sizes
        count = len(config.reads)
        norms = count if config.norms_features else 0
        self.fc_norm = nn.ModuleList(RmsNorm(sizes.hidden, sizes.epsilon) for _ in range(norms))
        self.fc = nn.Linear(count * sizes.hidden, sizes.hidden, bias=False)
        if config.feature_sampling:
            self.sampling = FeatureSampling(sizes)
        copies = [1] * (config.layers - 1) + [2 if config.partial_alignment else 1]
        self.layers = nn.ModuleList(
            DecoderLayer(sizes, count)
            if number or config.feature_sampling
            else _FirstLayer(config, count)
            for number, count in enumerate(copies)
        )
        self.norm = RmsNorm(sizes.hidden, sizes.epsilon)
        if config.own_head:
            self.lm_head = nn.Linear(sizes.hidden, config.own_head, bias=False)

    @property
    def own_rows(self) -> Float[Tensor, "draft_vocab dim"] | None:
        """Rows of its own output head; None where it reads with those of the target."""
        return self.lm_head.weight if self.config.own_head else None

    def combine(
        self, features: Float[Tensor, "... rows reads dim"]
    ) -> Float[Tensor, "... rows dim"]:
        """Combine the target's states of all layers that it reads into one."""
        if self.config.norms_features:
            parts = features.unbind(-2)
            features = torch.stack(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-2
            )
        return self.fc(features.flatten(-2))

    def forward(
        self,
        embedded: Float[Tensor, "... rows dim"],
        state: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows"],
        attend: AttentionRule,
    ) -> tuple[Float[Tensor, "... rows dim"], Float[Tensor, "... rows dim"]]:
        """Run one step; return the state that is fed back, and the one that the output head reads.

        Args:
            embedded: the target's embedding of the tokens at the next places.
            state: ``combine`` of the target's states, or the state of the step before.
            positions: of the rows, for the rotary embedding.
            attend: which rows see which.
        """
        if self.config.feature_sampling:
            state = self.sampling(embedded, state)
        for number, layer in enumerate(self.layers):
            if isinstance(layer, _FirstLayer):
                state = layer(embedded, state, positions, attend)
            else:
                state = layer(state, positions, number, attend)
        if self.config.partial_alignment:
            read, fed = state.chunk(2, dim=-1)
            return fed, self.norm(read)
        normed = self.norm(state)
        return (normed if self.config.feeds_normed else state), normed


class FeatureSampling(nn.Module):
    """Token and state as one state: the token gates what is taken of both, in as many dimensions as
    a layer's network has (Gui et al. 2024, arXiv:2408.15562).
    """

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.joined = nn.Linear(2 * sizes.hidden, sizes.hidden, bias=False)
        self.norm = RmsNorm(sizes.hidden, sizes.epsilon)
        self.mlp = Mlp(sizes)

    def forward(
        self, embedded: Float[Tensor, "... rows dim"], state: Float[Tensor, "... rows dim"]
    ) -> Float[Tensor, "... rows dim"]:
        state = self.joined(torch.cat([embedded, state], dim=-1))
        return state + self.mlp(self.norm(state), gating=embedded)


class _FirstLayer(DecoderLayer):
    """A decoder layer whose attention reads the token beside the state."""

    def __init__(self, config: EagleConfig, copies: int) -> None:
        sizes = config.sizes
        super().__init__(sizes, copies, inputs=2 * sizes.hidden)
        self.normed_residual = config.norm_before_residual
        self.hidden_norm = RmsNorm(sizes.hidden, sizes.epsilon)

    def forward(  # type: ignore[override]
        self, embedded: Tensor, state: Tensor, positions: Tensor, attend: AttentionRule
    ) -> Tensor:
        normed = self.hidden_norm(state)
        rows = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        state = normed if self.normed_residual else state
        state = state + self.self_attn(rows, positions, 0, attend)
        return self.through_network(state)
