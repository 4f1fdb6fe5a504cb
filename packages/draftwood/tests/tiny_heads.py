"""Heads that learnt nothing, of every kind; see ``draftwood.testing.heads``."""

from collections.abc import Callable
from functools import partial

import numpy as np

from draftwood import methods
from draftwood.heads.trained import TrainedHead
from draftwood.methods import MethodSpec
from draftwood.models.decoder import Layer, Norm, Projection
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.native.mtp import MtpParts, NativeMtp
from draftwood.testing.heads import head_maker, tiny_eagle
from draftwood.testing.heads import sure_eagle as sure_eagle

tiny_lm = head_maker("lm")
# of these, frames, queries, heads and sizes say different things
tiny_ctc = head_maker("ctc", 0.3, lambda target: {"reads": (target.layers,), "frames": 4})
tiny_longspec = head_maker(
    "longspec", 0.0, lambda target: {"layer": target.layers // 2, "window": 3}
)
tiny_specdec, tiny_s2d = head_maker("specdec", 0.3), head_maker("s2d", 0.3)
tiny_medusa = head_maker("medusa", 0.3, lambda target: {"reads": (target.layers,)})
tiny_dflash = head_maker(
    "dflash", 0.3, lambda target: {"reads": (1, target.layers), "frames": 4, "pairwise": 4}
)
tiny_masked = head_maker("masked", 0.3, lambda target: {"layers": target.layers, "rank": 2})


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
