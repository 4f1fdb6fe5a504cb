"""Heads that learnt nothing, for tests of what drafts with trained ones."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from draftwood import methods
from draftwood.heads.ctc import CtcConfig
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.kinds import HeadConfig, config_type
from draftwood.heads.lm import LmConfig
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.trained import TrainedHead
from draftwood.methods import MethodSpec
from draftwood.models.model import Model
from draftwood.native.formats import HeadSizes
from draftwood.optional import backend


def tiny_eagle(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random EAGLE head for a small target: it drafts what nobody expects.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``EagleConfig``, its sizes apart.
    """
    settings = {"reads": (1, target.layers // 2, target.layers), **settings}
    return _tiny(EagleConfig(_sizes(target), **settings), target, draft_tokens, seed)


def sure_eagle(target: Model, draft_tokens: Sequence[int] = (), seed: int = 0) -> TrainedHead:
    """A random EAGLE head for a target of any size: it is sure of what it says, and wrong.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
    """
    config = EagleConfig(_sizes(target), reads=(1, target.layers // 2, target.layers))
    return _tiny(config, target, draft_tokens, seed, noise=0.3)


def tiny_ctc(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random CTC head for a small target, whose frames say different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``CtcConfig``, its sizes apart.
    """
    settings = {"reads": (target.layers,), "frames": 4, **settings}
    return _tiny(CtcConfig(_sizes(target), **settings), target, draft_tokens, seed, noise=0.3)


def tiny_lm(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random draft LM for a small target.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``LmConfig``, its sizes apart.
    """
    return _tiny(LmConfig(_sizes(target), **settings), target, draft_tokens, seed)


def tiny_longspec(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random LongSpec head for a small target, with as many heads for keys and values.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``LongspecConfig``, its sizes apart.
    """
    settings = {"layer": target.layers // 2, "window": 3, **settings}
    return _tiny(config_type("longspec")(_sizes(target), **settings), target, draft_tokens, seed)


def tiny_specdec(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random SpecDec drafter for a small target, whose queries say different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``SpecdecConfig``, its sizes apart.
    """
    config = config_type("specdec")(_sizes(target), **settings)
    return _tiny(config, target, draft_tokens, seed, noise=0.3)


def tiny_medusa(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """Random Medusa heads for a small target, which draft different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``MedusaConfig``, its sizes apart.
    """
    settings = {"reads": (target.layers,), **settings}
    return _tiny(MedusaConfig(_sizes(target), **settings), target, draft_tokens, seed, noise=0.3)


def tiny_s2d(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random nested draft LM for a small target, whose sizes say different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``S2dConfig``, its sizes apart.
    """
    config = config_type("s2d")(_sizes(target), **settings)
    return _tiny(config, target, draft_tokens, seed, noise=0.3)


def tiny_dflash(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random block head for a small target, whose slots say different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``DflashConfig``, its sizes apart.
    """
    settings = {"reads": (1, target.layers), "frames": 4, "pairwise": 4, **settings}
    config = config_type("dflash")(_sizes(target), **settings)
    return _tiny(config, target, draft_tokens, seed, noise=0.3)


def _sizes(target: Model) -> HeadSizes:
    dim = target.hidden_size
    return HeadSizes(dim, 2 * dim, heads=4, num_kv_heads=2, head_dim=dim // 4)


def _tiny(
    config: HeadConfig, target: Model, draft_tokens: Sequence[int], seed: int, noise: float = 0.0
) -> TrainedHead:
    """New weights, with noise on all of them where those of a new network say all the same."""
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
}
"""Random heads by the drafter that takes them."""
