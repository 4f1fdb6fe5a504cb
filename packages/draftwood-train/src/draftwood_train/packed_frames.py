"""Frames at many places of a text at once: which places, and what their frames attend to."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class PackedFrames:
    """Attention of a training batch: the frames of many rows of a text, each with its own context.

    Frames see the context that ``seen`` names and the frames of their own row. The context's own
    queries are not answered.

    Args:
        frames: of each row.
        seen: which places of the context the frames of each row see.
    """

    def __init__(self, frames: int, seen: Bool[Tensor, "batch anchors context"]) -> None:
        self.frames, self.seen = frames, seen

    def __call__(
        self,
        layer: int,
        query: Float[Tensor, "batch heads rows dim"],
        key: Float[Tensor, "batch kv_heads rows dim"],
        value: Float[Tensor, "batch kv_heads rows dim"],
    ) -> Float[Tensor, "batch heads rows dim"]:
        places, frames = self.seen.shape[-1], self.frames
        groups = query.shape[1] // key.shape[1]
        query = query[:, :, places:].unflatten(2, (-1, frames))
        own = [each[:, :, places:].unflatten(2, (-1, frames)) for each in (key, value)]
        own_key, own_value = (each.repeat_interleave(groups, dim=1) for each in own)
        far_key, far_value = (
            each[:, :, :places].repeat_interleave(groups, dim=1) for each in (key, value)
        )
        far = torch.einsum("bhafd,bhcd->bhafc", query, far_key)
        far = far.masked_fill(~self.seen[:, None, :, None], -torch.inf)
        near = torch.einsum("bhafd,bhagd->bhafg", query, own_key)
        scores = torch.cat([far, near], dim=-1).float() * query.shape[-1] ** -0.5
        far, near = scores.softmax(-1).to(value.dtype).split([places, frames], dim=-1)
        mixed = torch.einsum("bhafc,bhcd->bhafd", far, far_value)
        mixed = mixed + torch.einsum("bhafg,bhagd->bhafd", near, own_value)
        unseen = mixed.new_zeros(*mixed.shape[:2], places, mixed.shape[-1])
        return torch.cat([unseen, mixed.flatten(2, 3)], dim=2)


def drawn(possible: Bool[Tensor, "rows places"], count: int) -> Bool[Tensor, "rows places"]:
    """Draw at most ``count`` of the possible places of each row."""
    chances = torch.rand(possible.shape, device=possible.device).masked_fill(~possible, -1.0)
    best = chances.topk(min(count, possible.shape[1]), dim=-1).indices
    return torch.zeros_like(possible).scatter(-1, best, True) & possible


def in_order(
    chosen: Bool[Tensor, "rows places"],
) -> tuple[Int[Tensor, "rows anchors"], Bool[Tensor, "rows anchors"]]:
    """The chosen places of each row, filled up to the longest, and which of them are real."""
    width = int(chosen.sum(-1).max())
    order = chosen.long().sort(dim=-1, descending=True, stable=True).indices[:, :width]
    return order, chosen.gather(-1, order)
