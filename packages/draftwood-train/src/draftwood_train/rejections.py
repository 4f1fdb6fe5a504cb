"""Replay decoding on texts that are known: where a head's drafts would be rejected."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_train.losses import CHUNK
from draftwood_train.recipe import PackedRows, TargetWeights


def is_first(
    states: Float[Tensor, "rows places dim"],
    tokens: Int[Tensor, "rows places"],
    counts: Bool[Tensor, "rows places"],
    target: TargetWeights,
) -> Bool[Tensor, "rows places"]:
    """True where a token is the likeliest behind its state; False where it does not count."""
    wanted, own = target.draft_index[tokens[counts]], states[counts].to(target.head.dtype)
    best = [functional.linear(part, target.head).argmax(-1) for part in own.split(CHUNK)]
    found = torch.zeros_like(counts)
    found[counts] = torch.cat(best) == wanted if best else found[counts]
    return found


def rejected(
    right: Bool[Tensor, "steps rows places"],
    counts: Bool[Tensor, "steps rows places"],
    rows: PackedRows,
) -> Bool[Tensor, "steps rows places"]:
    """Mark the place and step of each draft that decoding rejects, as it goes through the texts.

    From a place it drafts one token after the other, keeps those that are right and the token that
    the target gives for the first that is not, and goes on from there. A text is entered at the
    last place of its prompt.

    Args:
        right: whether the token drafted from a place at a step is that of the text.
        counts: whether the text has such a token.
    """
    accepted = (right & counts).long().cumprod(0).sum(0)
    found, is_inside = torch.zeros_like(counts), _starts(rows) | rows.is_answer
    for row, (kept, inside) in enumerate(zip(accepted.tolist(), is_inside.tolist(), strict=True)):
        place = 0
        while place < len(kept):
            step = kept[place] if inside[place] else 0
            if inside[place] and step < len(found):
                found[step, row, place] = True
            place += step + 1
    return found & counts


def _starts(rows: PackedRows) -> Bool[Tensor, "rows places"]:
    """True at the last place of a prompt."""
    follows = rows.is_answer.roll(-1, 1) & (rows.segments.roll(-1, 1) == rows.segments)
    return follows & ~rows.is_answer & (rows.segments >= 0)
