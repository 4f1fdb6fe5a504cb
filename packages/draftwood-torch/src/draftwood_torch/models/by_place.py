"""Models that hide tokens from each other by their places in the cache, whatever the mask says.

Bark and GPT-Neo do. Where several sequences are run together, the tokens of all but one stand at
other places than such a model thinks. A model that hides what comes later whatever the mask says
cannot run rows that see later ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from draftwood.models.cache.places import CacheSlice
from draftwood.storage.memory import is_lack_of_memory
from draftwood.tree import DraftTree
from draftwood_torch.models.pool import CachePool
from draftwood_torch.models.run_cache import RunCache
from draftwood_torch.models.tensor_input import TensorInput
from draftwood_torch.tensors import as_tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RunPadded = Callable[[Sequence[TensorInput], RunCache], Tensor]
"""Runs parts over a cache as rows of one pass; their logits [parts longest vocab]."""

LONG, WIDE = 5, 5
"""Tokens before a lone root, and nodes of a tree that stands behind a single token beside it."""


@dataclass(frozen=True)
class Masking:
    """Treatment of the masks that a model is given.

    Attributes:
        is_by_place: whether nodes of trees of unequal sizes miss in one pass what their masks show
            them, or such a pass fails.
        shows_later: whether rows see later ones where their masks show these.
    """

    is_by_place: bool
    shows_later: bool


_found: "WeakKeyDictionary[PreTrainedModel, Masking]" = WeakKeyDictionary()


def masking_of(hf_model: "PreTrainedModel", pool: CachePool, run: RunPadded) -> Masking:
    """Find out by a pass over a few tokens, once for each model.

    Keys and values before the trees are noise. Those of one row and the next differ in a single
    token, which the mask shows: who gives both rows the same logits did not see it. Where
    this pass fails, sequences are run one by one: some models read rows of memory of their own
    alone.
    """
    if hf_model not in _found:
        try:
            _found[hf_model] = _probed(pool, run)
        except Exception as error:
            if is_lack_of_memory(error):
                raise
            return Masking(is_by_place=True, shows_later=False)
    return _found[hf_model]


@torch.no_grad()
def _probed(pool: CachePool, run: RunPadded) -> Masking:
    lone, wide = DraftTree.of([0], [-1]), DraftTree.of([0] * WIDE, [-1, *[0] * (WIDE - 1)])
    trees = ((LONG, lone), (LONG, lone), (1, wide), (1, wide))
    parts = [_behind(slot, before, tree) for slot, (before, tree) in enumerate(trees)]
    parts += [_pair(len(trees) + token, token) for token in (0, 1)]
    logits = run(parts, _NoiseCache(pool, [part.place for part in parts]))
    pairs = ((logits[0, 0], logits[1, 0]), (logits[2, WIDE - 1], logits[3, WIDE - 1]))
    return Masking(
        is_by_place=any(torch.equal(one, other) for one, other in pairs),
        shows_later=not torch.equal(logits[4, 0], logits[5, 0]),
    )


def _pair(slot: int, second: int) -> TensorInput:
    """Two tokens without a text that see each other."""
    positions, sees = torch.arange(2), torch.ones(2, 2, dtype=torch.bool)
    tokens = torch.tensor([0, second])
    return TensorInput(tokens, positions, CacheSlice(slot, 0, 2), 0, sees, positions)


def _behind(slot: int, before: int, tree: DraftTree) -> TensorInput:
    """A tree behind so many tokens."""
    positions = as_tensor(before + tree.depths)
    place = CacheSlice(slot, before, len(tree))
    tokens, sees = as_tensor(tree.tokens), as_tensor(tree.ancestors)
    return TensorInput(tokens, positions, place, before, sees, positions)


class _NoiseCache(RunCache):
    """A cache that holds noise before the new tokens; rows come in pairs that differ in their last
    token.
    """

    def __init__(self, pool: CachePool, places: Sequence[CacheSlice]) -> None:
        super().__init__(pool, places)
        self._noise = torch.Generator().manual_seed(0)

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        return self._filled(key_states), self._filled(value_states)

    def _filled(self, new: Tensor) -> Tensor:
        """Noise and the new tokens behind it, [rows heads width dim], as they lie in a pool."""
        rows, heads, _, dim = new.shape
        noise = torch.randn(rows, self.width, heads, dim, generator=self._noise).to(new)
        noise = noise.transpose(1, 2)
        for row, place in enumerate(self.places):
            if row % 2:
                alike = max(0, place.start - 1)
                noise[row, :, :alike] = noise[row - 1, :, :alike]
            end = place.start + place.count
            noise[row, :, place.start : end] = new[row, :, : place.count]
        return noise
