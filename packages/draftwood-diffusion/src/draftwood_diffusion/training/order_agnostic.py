"""Order-agnostic last layer: rows predict places on both sides, and mend errors."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_diffusion.training.decoder import StreamDecoder, StreamLayer, rotated
from draftwood_diffusion.training.noise import Grid


@dataclass(frozen=True, eq=False)
class OrderAgnostic:
    """A decoder whose last layer turns its queries to the places that they predict.

    Xu et al. 2024, arXiv:2410.09675: keys keep their positions and rows see what they saw; a query
    is turned to a place some way behind or ahead, and all else of the layer is shared. Differs from
    the paper: a text is corrupted by tokens of chance, in the place of chunks of itself.

    Attributes:
        decoder: trained as a whole.
        back, ahead: places that each row predicts behind itself and ahead; itself is one more.
    """

    decoder: StreamDecoder
    back: int = 8
    ahead: int = 4

    @property
    def offsets(self) -> Int[Tensor, " offsets"]:
        """Places from a row to what it predicts."""
        return torch.arange(-self.back, self.ahead + 1)

    def logits(
        self, tokens: Int[Tensor, "texts places"]
    ) -> Float[Tensor, "texts offsets places vocab"]:
        """Predictions of each row, by the place from it."""
        decoder, order = self.decoder, torch.arange(tokens.shape[1])
        sight = Grid(len(order), 0, 1).sight(True)
        rows = functional.embedding(tokens, decoder.embedding)[:, None]
        turns = decoder.turns(order, rows)
        *layers, last = cast("list[StreamLayer]", list(decoder.layers))
        for layer in layers:
            rows = layer(rows, turns, sight)
        attention, normed = last.self_attn, last.input_layernorm(rows)
        query, key = (
            attention.heads(attention.q_proj(normed)),
            attention.heads(attention.k_proj(normed)),
        )
        if decoder.sizes.has_head_norms:
            query, key = attention.q_norm(query), attention.k_norm(key)
        targets = decoder.turns(order + self.offsets[:, None], rows)
        query = rotated(query, *(each[:, None] for each in targets))
        key = rotated(key, *turns).expand(-1, len(self.offsets), -1, -1, -1)
        value = attention.heads(attention.v_proj(normed)).expand_as(key)
        mixed = functional.scaled_dot_product_attention(
            *(each.flatten(0, 1) for each in (query, key, value)),
            attn_mask=sight.clean,
            enable_gqa=query.shape[2] != key.shape[2],
        ).unflatten(0, query.shape[:2])
        rows = rows + attention.o_proj(mixed.transpose(2, 3).flatten(3))
        rows = rows + last.mlp(last.post_attention_layernorm(rows))
        return decoder.logits(decoder.norm(rows)).float()

    def loss(
        self, tokens: Int[Tensor, "texts places"], corrupted: Int[Tensor, "texts places"]
    ) -> Tensor:
        """Mean cross-entropy: of places ahead on the text as it is, else on the corrupted one."""
        places, is_there = self._places(tokens.shape[1])
        targets = tokens[:, places]
        ahead = (self.offsets > 0)[:, None] & is_there
        losses = [
            functional.cross_entropy(
                self.logits(text)[:, part].flatten(0, 1), targets[:, part].flatten()
            )
            for text, part in ((tokens, ahead), (corrupted, ~ahead & is_there))
        ]
        return losses[0] + losses[1]

    @torch.no_grad()
    def corrected(
        self, tokens: Int[Tensor, "texts places"], decay: float = 0.9, looks_back: bool = True
    ) -> Int[Tensor, "texts places"]:
        """Likeliest token of each place, by the mean over all rows that predict it.

        Args:
            decay: of a prediction's weight for each place of its distance.
            looks_back: whether rows predict places behind them and their own.
        """
        places, is_there = self._places(tokens.shape[1])
        if not looks_back:
            is_there = is_there & (self.offsets > 0)[:, None]
        weights = decay ** self.offsets.abs()[:, None].float() * is_there
        logs = self.logits(tokens).log_softmax(-1) * weights[..., None]
        sums = torch.zeros(*tokens.shape, logs.shape[-1])
        sums.index_add_(1, places.flatten(), logs.flatten(1, 2))
        return sums.argmax(-1)

    def _places(self, count: int) -> tuple[Int[Tensor, "..."], Bool[Tensor, "..."]]:
        """Place that each row predicts by offsets [offsets places], and whether there is one."""
        places = torch.arange(count) + self.offsets[:, None]
        return places.clamp(0, count - 1), (places >= 0) & (places < count)


def corrupted(
    tokens: Int[Tensor, "texts places"], share: float, vocab: int, chance: torch.Generator
) -> Int[Tensor, "texts places"]:
    """Put tokens of chance in some places."""
    others = torch.randint(vocab, tokens.shape, generator=chance)
    return torch.where(torch.rand(tokens.shape, generator=chance) < share, others, tokens)
