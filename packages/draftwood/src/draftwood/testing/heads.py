"""Heads that learnt nothing, for tests of what drafts with trained ones.

All take a small target, the tokens that are drafted in ascending order, where none means every
other one of the target, and settings of the head's configuration, its sizes apart.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from draftwood import methods
from draftwood.heads.kinds import config_type
from draftwood.heads.trained import TrainedHead
from draftwood.methods import MethodSpec
from draftwood.models.decoder import Layer, Norm, Projection
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.native.mtp import MtpParts, NativeMtp
from draftwood.native.formats import HeadSizes
from draftwood.optional import backend


class HeadMaker(Protocol):
    """Makes a head of random weights."""

    def __call__(
        self, target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
    ) -> TrainedHead: ...


def _maker(
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


tiny_eagle = _maker("eagle", usual=_three)
"""Make an EAGLE head: it drafts what nobody expects."""
sure_eagle = _maker("eagle", 0.3, _three)
"""Make an EAGLE head for a target of any size: it is sure of what it says, and wrong."""
tiny_lm = _maker("lm")
# of these, frames, queries, heads and sizes say different things
tiny_ctc = _maker("ctc", 0.3, lambda target: {"reads": (target.layers,), "frames": 4})
tiny_longspec = _maker("longspec", 0.0, lambda target: {"layer": target.layers // 2, "window": 3})
tiny_specdec, tiny_s2d = _maker("specdec", 0.3), _maker("s2d", 0.3)
tiny_medusa = _maker("medusa", 0.3, lambda target: {"reads": (target.layers,)})
tiny_dflash = _maker(
    "dflash", 0.3, lambda target: {"reads": (1, target.layers), "frames": 4, "pairwise": 4}
)
tiny_masked = _maker("masked", 0.3, lambda target: {"layers": target.layers, "rank": 2})


def tiny_mtp(target: NativeModel, seed: int = 0) -> NativeMtp:
    """Make a layer for multi-token prediction of random weights, sure of what it says."""
    numbers, sizes = np.random.default_rng(seed), target.weights.structure
    hidden, network = sizes.hidden, target.sizes.intermediate_size
    queries, keys = (count * sizes.head_dim for count in (sizes.heads, sizes.num_kv_heads))

    def matrix(outputs: int, inputs: int) -> Projection:
        weights = numbers.normal(scale=0.3, size=(outputs, inputs))
        return Projection(weights.astype(np.float32), None)

    norm, last = (
        Norm(each, None, each) for each in (np.full(hidden, size, np.float32) for size in (1, 4))
    )
    layer = Layer(
        **dict.fromkeys(("query_norm", "key_norm", "after_attention_norm", "after_mlp_norm")),
        **dict.fromkeys(("attention_norm", "mlp_norm"), norm),
        **{"query": matrix(queries, hidden), "output": matrix(hidden, queries)},
        **{name: matrix(keys, hidden) for name in ("key", "value")},
        **{name: matrix(network, hidden) for name in ("gate", "up")},
        down=matrix(hidden, network),
        **dict.fromkeys(("experts", "sinks", "window")),
        rotary=0,
    )
    return NativeMtp(MtpParts(layer, last, norm, norm, matrix(hidden, 2 * hidden)), target)


def tiny_drafter(method: str | MethodSpec, target: Model) -> TrainedHead | None:
    """A random head for a method; None for methods that need none."""
    recipe = methods.recipe(method)
    return TINY[recipe.drafter.name](target) if "head" in recipe.needs else None


TINY: dict[str, Callable[[Model], TrainedHead]] = {
    "eagle": tiny_eagle,
    **dict.fromkeys(("ctc", "ctc-paper", "ctc-raw"), tiny_ctc),
    "lm": tiny_lm,
    "longspec": tiny_longspec,
    "specdec": tiny_specdec,
    "medusa": tiny_medusa,
    "hydra": partial(tiny_medusa, sees_drafted=True),
    "specdec++": partial(tiny_lm, acceptance=2),
    "s2d": tiny_s2d,
    "dflash": tiny_dflash,
    **dict.fromkeys(("masked-block", "masked-in-pass"), tiny_masked),
}
"""Random heads by the drafter that takes them."""
