"""Estimate the tokens per decoding step from held-out text alone.

A held-out text tells what a target writes after each place. Where a head, fed with the true tokens,
ranks the next token r1 at the first level, r2 at the second and so on, a tree contains the true
path as far as it contains the node (r1, r2, ...). So the share of places at which a node is true is
its value, and the nodes of highest value make the best tree of a size: no node's value exceeds its
parent's.

The estimate takes one tree for all places. Trees that adapt to the head's probabilities do better,
so it is a lower bound. Beside it stand figures for sampling at temperature 1.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_train.losses import CHUNK, Compared
from draftwood_train.recipe import Judged, PackedRows, TargetWeights
from draftwood_train.unrolled import predicted_places, shifted

JUDGED_STEPS = 4
"""Levels of the tree that ``judge`` considers; trees of 8 nodes are rarely deeper."""

RANKS = 4
"""Ranks of a node's children that are considered."""

NODES = 8
"""Nodes of the tree whose block efficiency is estimated."""


def judged_steps(
    states: Sequence[Float[Tensor, "rows places dim"]],
    rows: PackedRows,
    target: TargetWeights,
    own: Float[Tensor, "draft_vocab dim"] | None = None,
) -> Judged:
    """Judge a head by the states of its draft steps, fed with the true tokens.

    Places are those of greedy answers that have as many further tokens as there are steps; where no
    answer is greedy, all answers count.

    Args:
        own: the head's own output rows; None for those of the target.
    """
    next_is_answer = shifted(rows.is_answer, 1, False) & (
        shifted(rows.segments, 1, -2) == rows.segments
    )
    counts = rows.segments >= 0
    for ahead in range(1, len(states) + 1):
        counts &= shifted(next_is_answer, ahead, False)
        counts &= shifted(rows.segments, ahead, -2) == rows.segments
    if (counts & rows.is_greedy).any():
        counts = counts & rows.is_greedy
    with torch.autocast(rows.tokens.device.type, enabled=False):
        found = [
            ranks_of(state[counts], shifted(rows.tokens, ahead + 1)[counts], target, own)
            for ahead, state in enumerate(states, start=1)
        ]
        likeness = _sampled(states[0], rows, target, own)
    ranks = torch.stack(found, dim=-1)
    places = int(counts.sum())
    figures = {"block_efficiency": places * block_efficiency(ranks, NODES)}
    figures |= {
        f"guess_{level + 1}": float((ranks[:, level] == 0).sum()) for level in range(len(states))
    }
    return Judged(places, figures | {name: places * value for name, value in likeness.items()})


def ranks_of(
    states: Float[Tensor, "count dim"],
    tokens: Int[Tensor, " count"],
    target: TargetWeights,
    own: Float[Tensor, "draft_vocab dim"] | None = None,
) -> Int[Tensor, " count"]:
    """Rank of the true token in a head's distribution, 0 being the first; ``RANKS`` for a miss.

    Args:
        own: the head's own output rows; None for those of the target.
    """
    ranks = torch.full_like(tokens, RANKS)
    places, head = target.draft_index[tokens], (target.head if own is None else own).float()
    for start in range(0, len(tokens), CHUNK):
        part = slice(start, start + CHUNK)
        logits = functional.linear(states[part].float(), head)
        true = logits.gather(1, places[part].clamp_min(0)[:, None])
        found = (logits > true).sum(-1).clamp_max(RANKS)
        ranks[part] = torch.where(places[part] < 0, RANKS, found)
    return ranks


def block_efficiency(ranks: Int[Tensor, "count levels"], nodes: int) -> float:
    """Tokens that a step emits with the best tree of ``nodes`` nodes, one tree for all places.

    Args:
        ranks: of the true tokens level by level, each after the true tokens before; ``RANKS`` if it
            ranks lower.
    """
    worth = []
    paths = torch.zeros(len(ranks), dtype=torch.long, device=ranks.device)
    alive: Bool[Tensor, " count"] = torch.ones_like(paths, dtype=torch.bool)
    for level in range(ranks.shape[1]):
        alive = alive & (ranks[:, level] < RANKS)
        longer = paths[alive] * RANKS + ranks[alive, level]
        _, paths[alive], counts = longer.unique(return_inverse=True, return_counts=True)
        worth.append(counts)
    best = torch.cat(worth).sort(descending=True).values[:nodes] if worth else paths
    return 1 + float(best.sum()) / max(len(ranks), 1)


def _sampled(
    states: Float[Tensor, "rows places dim"],
    rows: PackedRows,
    target: TargetWeights,
    own: Float[Tensor, "draft_vocab dim"] | None,
) -> dict[str, float]:
    """Means over all places of answers: overlap with the target at temperature 1, and KL."""
    counts = shifted(predicted_places(rows.is_answer, rows.segments), 1, False)
    counts &= (shifted(rows.segments, 1, -2) == rows.segments) & (rows.segments >= 0)
    head, sums = target.head.float(), torch.zeros(2, dtype=torch.float64)
    drafted, final = states[counts].float(), shifted(rows.final, 1)[counts].float()
    own_head = head if own is None else own.float()
    normalizer = shifted(rows.log_normalizer, 1)[counts]
    for start in range(0, len(drafted), CHUNK):
        part = slice(start, start + CHUNK)
        logits = functional.linear(drafted[part], own_head)
        true = functional.linear(final[part], head)
        both = Compared.of(logits, true, normalizer[part])
        sums += torch.stack([each.double().sum() for each in (both.overlap, both.divergence)]).cpu()
    means = (sums / max(len(drafted), 1)).tolist()
    return {"overlap": means[0], "kl": means[1]}
