"""Heads that learnt nothing, for tests of what drafts with trained ones.

All take a small target, the tokens that are drafted in ascending order, where none means every
other one of the target, and settings of the head's configuration, its sizes apart.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from draftwood import methods
from draftwood.heads.kinds import config_type
from draftwood.heads.trained import TrainedHead
from draftwood.methods import MethodSpec
from draftwood.models.model import Model
from draftwood.native.formats import HeadSizes
from draftwood.optional import backend


def tiny_eagle(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random EAGLE head for a small target: it drafts what nobody expects."""
    settings = {"reads": (1, target.layers // 2, target.layers), **settings}
    return _tiny("eagle", target, draft_tokens, seed, settings)


def sure_eagle(target: Model, draft_tokens: Sequence[int] = (), seed: int = 0) -> TrainedHead:
    """A random EAGLE head for a target of any size: it is sure of what it says, and wrong."""
    settings = {"reads": (1, target.layers // 2, target.layers)}
    return _tiny("eagle", target, draft_tokens, seed, settings, noise=0.3)


def tiny_ctc(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random CTC head for a small target, whose frames say different things."""
    settings = {"reads": (target.layers,), "frames": 4, **settings}
    return _tiny("ctc", target, draft_tokens, seed, settings, noise=0.3)


def tiny_lm(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random draft LM for a small target."""
    return _tiny("lm", target, draft_tokens, seed, settings)


def tiny_longspec(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random LongSpec head for a small target, with as many heads for keys and values."""
    settings = {"layer": target.layers // 2, "window": 3, **settings}
    return _tiny("longspec", target, draft_tokens, seed, settings)


def tiny_specdec(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random SpecDec drafter for a small target, whose queries say different things."""
    return _tiny("specdec", target, draft_tokens, seed, settings, noise=0.3)


def tiny_medusa(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """Random Medusa heads for a small target, which draft different things."""
    settings = {"reads": (target.layers,), **settings}
    return _tiny("medusa", target, draft_tokens, seed, settings, noise=0.3)


def tiny_s2d(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random nested draft LM for a small target, whose sizes say different things."""
    return _tiny("s2d", target, draft_tokens, seed, settings, noise=0.3)


def tiny_dflash(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random block head for a small target, whose slots say different things."""
    settings = {"reads": (1, target.layers), "frames": 4, "pairwise": 4, **settings}
    return _tiny("dflash", target, draft_tokens, seed, settings, noise=0.3)


def tiny_masked(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random mask adapter for a small target, whose rows say different things."""
    settings = {"layers": target.layers, "rank": 2, **settings}
    return _tiny("masked", target, draft_tokens, seed, settings, noise=0.3)


def _tiny(
    kind: str,
    target: Model,
    draft_tokens: Sequence[int],
    seed: int,
    settings: Mapping[str, Any],
    noise: float = 0.0,
) -> TrainedHead:
    """New weights, with noise on all of them where those of a new network say all the same."""
    dim = target.hidden_size
    sizes = HeadSizes(dim, 2 * dim, heads=4, num_kv_heads=2, head_dim=dim // 4)
    config = config_type(kind)(sizes, **settings)
    tokens = np.array(draft_tokens or range(0, target.vocab_size, 2), np.int64)
    network = backend("a head of random weights").random_network(config, seed, noise)
    return TrainedHead.of(network, tokens, target, "tiny")


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
