"""Choose the texts that teach most: those of which their target was least sure."""

from typing import Any

import torch
from torch.nn import functional

from draftwood_train.data.dataset import Texts
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.recipe import TargetWeights
from draftwood_train.recomputed import UnrunTexts

EVERY = 8
"""Places of an answer of which one is looked at."""


def flattest(
    texts: Texts | TextsInMemory, final: int, target: TargetWeights, share: float
) -> frozenset[int]:
    """Numbers of the share of texts after whose tokens the target's distributions are flattest.

    After arXiv:2601.18902, which keeps half of the samples; here flatness is the mean entropy over
    an answer.

    Args:
        final: place of the state after the final norm among a text's states.
    """
    found = torch.tensor(
        [
            stored_entropy(texts.tokens_of(number).top)
            if isinstance(texts, UnrunTexts) and texts.tokens_of(number).top is not None
            else entropy(texts[number], final, target)
            for number in range(len(texts))
        ]
    )
    most = max(1, round(share * len(found)))
    return frozenset(found.sort(descending=True, stable=True).indices[:most].tolist())


def stored_entropy(top: Any) -> float:
    """Mean entropy in nats of stored distributions; what they leave out counts as one token."""
    rest = (1 - top.logs.exp().sum(-1)).clamp_min(1e-9)
    return float(-((top.logs.exp() * top.logs).sum(-1) + rest * rest.log()).mean())


def entropy(text: StoredText, final: int, target: TargetWeights) -> float:
    """Mean entropy in nats of the target's distributions that a text's answer was drawn from.

    What lies outside the draft vocabulary counts as one token.
    """
    first = max(text.answer - 1, 0)
    places = slice(first, max(len(text.tokens) - 1, first + 1), EVERY)
    states = text.states[places, final].to(target.head.dtype)
    logits = functional.linear(states, target.head).float()
    log_p = logits - text.log_normalizer[places, None].float()
    rest = (1 - log_p.exp().sum(-1, keepdim=True)).clamp_min(1e-9).log()
    every = torch.cat([log_p, rest], dim=-1)
    return float(-(every.exp() * every).sum(-1).mean())
