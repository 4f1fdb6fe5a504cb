"""Attention of several draft steps at all places of a text at once."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood_torch.heads import layers


class Unrolled:
    """Attention rule for a head that drafts on from every place of packed texts (arXiv:2503.01840).

    The row of step j at place i stands for the node that hangs j levels below the target's state at
    i. It sees what a drafter's cache would hold: the rows of step 0 up to place i of the same text,
    and its own rows of steps 1 to j. An ``AttentionRule`` for ``step`` after ``step``; behind step
    0 it may go on at some places alone.

    Args:
        segments: number of the text within the row, at each place.
        window: newest rows that a row sees; None for all.
    """

    def __init__(self, segments: Int[Tensor, "rows places"], window: int | None = None) -> None:
        self._segments, self._window = segments, window
        self._places = segments.shape[-1]
        self._step = -1
        self._chosen: Tensor | None = None
        self._keys: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._seen = self._mask(0)

    def next_step(self, chosen: Int[Tensor, "rows chosen"] | None = None) -> None:
        """Begin the next step: rows that come in from now on belong to it.

        Args:
            chosen: places whose rows come in, the same at every step behind step 0; None for all.
        """
        self._step += 1
        is_new = chosen is not self._chosen
        cut = self._window is not None and self._places + self._step > self._window
        if is_new or (self._step and cut):
            self._chosen, self._seen = chosen, at_places(self._mask(self._step), chosen)

    def __call__(
        self,
        layer: int,
        query: Float[Tensor, "rows heads places dim"],
        key: Float[Tensor, "rows kv_heads places dim"],
        value: Float[Tensor, "rows kv_heads places dim"],
    ) -> Float[Tensor, "rows heads places dim"]:
        if self._step == 0:
            self._keys[layer] = [(key, value)]
            return layers.attended(query, key, value, self._seen)
        self._keys[layer].append((key, value))
        return self._later(query, *zip(*self._keys[layer], strict=True))

    def _later(self, query: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> Tensor:
        """Grouped attention to the rows of step 0 and to one row of each later step."""
        heads, groups = query.shape[1], keys[0].shape[1]
        query = query.unflatten(1, (groups, heads // groups)) * query.shape[-1] ** -0.5
        before = query @ keys[0].unsqueeze(2).transpose(-1, -2)
        before = before.float().masked_fill(~self._seen[:, None, None], float("-inf"))
        own = [(query * key.unsqueeze(2)).float().sum(-1, keepdim=True) for key in keys[1:]]
        shares = torch.cat([before, *own], dim=-1).softmax(-1).to(query.dtype)
        mixed = shares[..., : self._places] @ values[0].unsqueeze(2)
        for number, value in enumerate(values[1:]):
            place = self._places + number
            mixed = mixed + shares[..., place : place + 1] * value.unsqueeze(2)
        return mixed.flatten(1, 2)

    def _mask(self, step: int) -> Bool[Tensor, "rows places places"]:
        places = torch.arange(self._places, device=self._segments.device)
        back = places[:, None] - places
        seen = back >= 0
        if self._window is not None:
            seen = seen & (back + step < self._window)
        return seen & (self._segments[:, :, None] == self._segments[:, None, :])


def at_places(values: Tensor, chosen: Int[Tensor, "rows chosen"] | None) -> Tensor:
    """Values [rows places ...] at the chosen places of each row; all of them for None."""
    if chosen is None:
        return values
    return values[torch.arange(len(values), device=values.device)[:, None], chosen]


def drawn_places(
    allowed: Bool[Tensor, "rows places"], share: float
) -> Int[Tensor, "rows chosen"] | None:
    """Draw a share of the allowed places of each row, rounded up; None where that is all."""
    if share >= 1:
        return None
    lots = torch.rand(allowed.shape, device=allowed.device)
    return _first_places(allowed, lots, share)


def all_places(allowed: Bool[Tensor, "rows places"]) -> Int[Tensor, "rows chosen"]:
    """Return the allowed places of each row."""
    return _first_places(allowed, torch.zeros(allowed.shape, device=allowed.device), 1.0)


def _first_places(
    allowed: Bool[Tensor, "rows places"], lots: Float[Tensor, "rows places"], share: float
) -> Int[Tensor, "rows chosen"]:
    """Choose a share of the allowed places of each row, those with the highest lots, ascending.

    Rows are of one length, by the row with most allowed places; shorter ones are filled with places
    that are not allowed.
    """
    counts = allowed.sum(-1).tolist()
    kept = torch.tensor([math.ceil(share * count) for count in counts], device=allowed.device)
    order = lots.masked_fill(~allowed, -1.0).argsort(-1, descending=True)
    is_chosen = order.argsort(-1) < kept[:, None]
    rank = 2 * is_chosen.int() + (~allowed).int()
    return rank.topk(max(1, int(kept.max())), dim=-1).indices.sort(-1).values


def shifted(values: Tensor, by: int, fill: int | bool = 0) -> Tensor:
    """Shift values left by ``by`` places in each row; ``fill`` behind the end."""
    if by == 0:
        return values
    blank = torch.full_like(values[:, :by], fill)
    return torch.cat([values[:, by:], blank], dim=1)


def predicted_places(
    is_answer: Bool[Tensor, "rows places"], segments: Int[Tensor, "rows places"]
) -> Bool[Tensor, "rows places"]:
    """Places whose next token is of an answer, or ends it: where a drafter has to be right."""
    goes_on = shifted(segments, 1, -2) == segments
    return (segments >= 0) & (is_answer | (shifted(is_answer, 1, False) & goes_on))
