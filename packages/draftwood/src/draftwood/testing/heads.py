"""Heads that learnt nothing, for measurements and tests of what drafts with trained ones.

All take a small target, the tokens that are drafted in ascending order, where none means every
other one of the target, and settings of the head's configuration, its sizes apart.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from draftwood.heads.kinds import config_type
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.native.formats import HeadSizes
from draftwood.optional import backend


class HeadMaker(Protocol):
    """Makes a head of random weights."""

    def __call__(
        self, target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
    ) -> TrainedHead: ...


def head_maker(
    kind: str, noise: float = 0.0, usual: Callable[[Model], Mapping[str, Any]] = lambda _: {}
) -> HeadMaker:
    """Make new weights, with noise on all of them where those of a new network say all the same.

    Args:
        usual: settings for a target, where others are not given.
    """

    def make(
        target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
    ) -> TrainedHead:
        dim = target.hidden_size
        sizes = HeadSizes(dim, 2 * dim, heads=4, num_kv_heads=2, head_dim=dim // 4)
        config = config_type(kind)(sizes, **{**usual(target), **settings})
        tokens = np.array(draft_tokens or range(0, target.vocab_size, 2), np.int64)
        network = backend("a head of random weights").random_network(config, seed, noise)
        return TrainedHead.of(network, tokens, target, "tiny")

    return make


def _three(target: Model) -> dict[str, Any]:
    return {"reads": (1, target.layers // 2, target.layers)}


tiny_eagle = head_maker("eagle", usual=_three)
"""Make an EAGLE head: it drafts what nobody expects."""
sure_eagle = head_maker("eagle", 0.3, _three)
"""Make an EAGLE head for a target of any size: it is sure of what it says, and wrong."""
