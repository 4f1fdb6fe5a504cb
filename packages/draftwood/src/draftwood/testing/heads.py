"""Heads that learnt nothing, for tests of what drafts with trained ones."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from draftwood import methods
from draftwood.heads.ctc import CtcConfig
from draftwood.heads.dflash import DflashConfig
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.kinds import parts_of
from draftwood.heads.layers import HeadSizes
from draftwood.heads.lm import LmConfig
from draftwood.heads.longspec import LongspecConfig
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.s2d import S2dConfig
from draftwood.heads.specdec import SpecdecConfig
from draftwood.heads.trained import TrainedHead
from draftwood.methods import MethodSpec
from draftwood.models.model import Model


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
    return _tiny(LongspecConfig(_sizes(target), **settings), target, draft_tokens, seed)


def tiny_specdec(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random SpecDec drafter for a small target, whose queries say different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``SpecdecConfig``, its sizes apart.
    """
    config = SpecdecConfig(_sizes(target), **settings)
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
    return _tiny(S2dConfig(_sizes(target), **settings), target, draft_tokens, seed, noise=0.3)


def tiny_dflash(
    target: Model, draft_tokens: Sequence[int] = (), seed: int = 0, **settings: Any
) -> TrainedHead:
    """A random block head for a small target, whose slots say different things.

    Args:
        draft_tokens: ascending; empty takes every other token of the target.
        settings: of ``DflashConfig``, its sizes apart.
    """
    settings = {"reads": (1, target.layers), "frames": 4, "pairwise": 4, **settings}
    return _tiny(DflashConfig(_sizes(target), **settings), target, draft_tokens, seed, noise=0.3)


def _sizes(target: Model) -> HeadSizes:
    dim = target.hidden_size
    return HeadSizes(dim, 2 * dim, heads=4, num_kv_heads=2, head_dim=dim // 4)


def _tiny(
    config: Any, target: Model, draft_tokens: Sequence[int], seed: int, noise: float = 0.0
) -> TrainedHead:
    """New weights, with noise on all of them where those of a new network say all the same."""
    network = parts_of(config.kind)[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = network(config).eval().requires_grad_(False)
        for weight in head.parameters() if noise else ():
            weight.add_(torch.randn_like(weight) * noise)
    tokens = torch.tensor(draft_tokens or range(0, target.vocab_size, 2))
    return TrainedHead.of(head, tokens, target, "tiny")


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
