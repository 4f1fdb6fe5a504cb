"""Estimate the tokens per decoding step from held-out text alone.

A held-out text tells what a target writes after each place. Where a head, fed with the true tokens,
ranks the next token r1 at the first level, r2 at the second and so on, a tree contains the true
path as far as it contains the node (r1, r2, ...). So the share of places at which a node is true is
its value, and the nodes of highest value make the best tree of a size: no node's value exceeds its
parent's.

The estimate takes one tree for all places. Trees that adapt to the head's probabilities do better.
The tree is chosen from the places that it is counted at, which makes it look better than it is
where they are few: a head that knows nothing gains a tenth with 20 places, and a hundredth with
500. So counts of nodes add up over all texts before a tree is chosen. Beside the estimate stand
figures for sampling at temperature 1, means over all places of answers.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_train.losses import CHUNK, Compared
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, TreePath
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

    Places are those of greedy answers that have as many further tokens as there are steps.

    Args:
        own: the head's own output rows; None for those of the target.
    """
    next_is_answer = shifted(rows.is_answer, 1, False) & (
        shifted(rows.segments, 1, -2) == rows.segments
    )
    counts = rows.is_greedy & (rows.segments >= 0)
    for ahead in range(1, len(states) + 1):
        counts &= shifted(next_is_answer, ahead, False)
        counts &= shifted(rows.segments, ahead, -2) == rows.segments
    with torch.autocast(rows.tokens.device.type, enabled=False):
        found = [
            ranks_of(state[counts], shifted(rows.tokens, ahead + 1)[counts], target, own)
            for ahead, state in enumerate(states, start=1)
        ]
        likeness, count = _sampled(states[0], rows, target, own)
    ranks = torch.stack(found, dim=-1)
    figures = {
        f"guess_{level + 1}": float((ranks[:, level] == 0).sum()) for level in range(len(states))
    }
    paths = {"block_efficiency": path_counts(ranks)}
    return Judged(len(ranks), figures | likeness, paths, dict.fromkeys(likeness, count))


def all_counted(rows: PackedRows) -> PackedRows:
    """The same rows with all answers judged as greedy ones are, for texts of which none is."""
    return replace(rows, is_greedy=rows.segments >= 0)


def ranks_of(
    states: Float[Tensor, "count dim"],
    tokens: Int[Tensor, " count"],
    target: TargetWeights,
    own: Float[Tensor, "draft_vocab dim"] | None = None,
) -> Int[Tensor, " count"]:
    """Rank of the true token in a head's distribution, 0 being the first; ``RANKS`` for a miss.

    Tokens as likely as the true one rank before it, so a head that tells none apart ranks none.

    Args:
        own: the head's own output rows; None for those of the target.
    """
    ranks = torch.full_like(tokens, RANKS)
    places, head = target.draft_index[tokens], (target.head if own is None else own).float()
    for start in range(0, len(tokens), CHUNK):
        part = slice(start, start + CHUNK)
        logits = functional.linear(states[part].float(), head)
        true = logits.gather(1, places[part].clamp_min(0)[:, None])
        found = ((logits >= true).sum(-1) - 1).clamp_max(RANKS)
        misses = (places[part] < 0) | ~true[:, 0].isfinite()
        ranks[part] = torch.where(misses, RANKS, found)
    return ranks


def path_counts(ranks: Int[Tensor, "count levels"]) -> Counter[TreePath]:
    """Count the places at which each node is true.

    Args:
        ranks: of the true tokens level by level, each after the true tokens before; ``RANKS`` if it
            ranks lower.
    """
    counts = Counter[TreePath]()
    for row in ranks.tolist():
        depth = row.index(RANKS) if RANKS in row else len(row)
        counts.update(tuple(row[:level]) for level in range(1, depth + 1))
    return counts


def best_tree(paths: Mapping[TreePath, int], nodes: int = NODES) -> frozenset[TreePath]:
    """Choose the tree of ``nodes`` nodes that are true most often; a parent goes first in a tie."""
    order = sorted(paths, key=lambda path: (-paths[path], len(path), path))
    return frozenset(order[:nodes])


def block_efficiency(
    paths: Mapping[TreePath, int], tree: Collection[TreePath], places: int
) -> float:
    """Tokens that a step emits with a tree, on average over so many places."""
    return 1 + sum(paths.get(node, 0) for node in tree) / max(places, 1)


def summed(parts: Iterable[Judged]) -> Judged:
    """Counts over the places of all parts together."""
    places, figures, paths = 0, dict[str, float](), dict[str, Counter[TreePath]]()
    counts = Counter[str]()
    for each in parts:
        places += each.places
        counts.update(each.counts)
        for name, value in each.figures.items():
            figures[name] = figures.get(name, 0.0) + value
        for name, nodes in each.paths.items():
            paths.setdefault(name, Counter()).update(nodes)
    return Judged(places, figures, paths, counts)


def best_trees(judged: Judged) -> dict[str, frozenset[TreePath]]:
    """Choose the best tree for each figure that follows from one."""
    return {name: best_tree(counts) for name, counts in judged.paths.items()}


def means(
    judged: Judged, trees: Mapping[str, Collection[TreePath]] | None = None
) -> dict[str, float]:
    """Mean figures over the places that each is told of, by name.

    Args:
        trees: that figures of a tree are counted with; None for the best ones for these places.
    """
    trees = best_trees(judged) if trees is None else trees
    found = {
        name: block_efficiency(counts, trees[name], judged.places)
        for name, counts in judged.paths.items()
    }
    return found | {
        name: value / max(judged.counts.get(name, judged.places), 1)
        for name, value in judged.figures.items()
    }


def _sampled(
    states: Float[Tensor, "rows places dim"],
    rows: PackedRows,
    target: TargetWeights,
    own: Float[Tensor, "draft_vocab dim"] | None,
) -> tuple[dict[str, float], int]:
    """Sums over all places of answers, and their number: overlap with the target at temperature 1,
    and KL.
    """
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
    overlap, divergence = sums.tolist()
    return {"overlap": overlap, "kl": divergence}, len(drafted)
