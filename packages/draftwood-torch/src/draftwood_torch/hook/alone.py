"""Passes of one token for every row, computed together: a step without draft tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.models.cache.places import CacheSlice
from draftwood.models.model import ModelOutput
from draftwood.models.session import PooledSession
from draftwood_torch.models.run_cache import RunCache
from draftwood_torch.models.transformers import TransformersModel


@torch.no_grad()
def run_alone(
    target: TransformersModel, sessions: Sequence[PooledSession], tokens: Sequence[int]
) -> ModelOutput:
    """Run one token after each sequence, as a lone root; return the logits after it.

    Commit it to keep it.
    """
    places = [session.place_node() for session in sessions]
    positions = torch.tensor([place.start for place in places]).to(target.device, non_blocking=True)
    with target.pool.lock:
        target.pool.cover(places)
        cache = _OneTokenCache(target, places, positions)
        out = target.hf_model(
            input_ids=torch.tensor(tokens)[:, None].to(target.device, non_blocking=True),
            position_ids=positions[:, None],
            attention_mask=_masks(target, positions, cache.width),
            past_key_values=cache,
            use_cache=True,
        )
    return ModelOutput(out.logits[:, -1])


def _masks(target: TransformersModel, positions: Tensor, width: int) -> Tensor | dict[str, Tensor]:
    masks, columns = {}, torch.arange(width, device=positions.device)
    for attention, window in target.attentions.items():
        sees = columns <= positions[:, None]
        if window is not None:
            sees &= columns > positions[:, None] - window
        mask = torch.zeros(sees.shape, dtype=target.pool.dtype, device=positions.device)
        masks[attention] = mask.masked_fill_(~sees, torch.finfo(mask.dtype).min)[:, None, None]
    return masks if len(masks) > 1 else next(iter(masks.values()))


class _OneTokenCache(RunCache):
    """Stores the keys and values of all rows at once."""

    def __init__(
        self, target: TransformersModel, places: Sequence[CacheSlice], starts: Tensor
    ) -> None:
        super().__init__(target.pool, places)
        slots = torch.tensor([place.slot for place in places]).to(target.device, non_blocking=True)
        self._at = (slots, starts)

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.pool.layer(layer_idx)
        for ours, new in ((keys, key_states), (values, value_states)):
            ours[self._at] = new[:, :, 0].to(ours.dtype)  # autocast gives others
        return self._rows(keys), self._rows(values)
