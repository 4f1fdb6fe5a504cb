"""Exact distributions of emitted text, for targets and drafts that are small tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.models.model import Model
from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler
from draftwood.shapes.shape import Expand, Shape
from draftwood.testing.outcomes import outcomes
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.verifier import NodeProbs, Verdict

Table = Float[np.ndarray, "vocab vocab"] | Float[np.ndarray, "vocab vocab vocab"]
"""Distribution of the next token, by the last token or by the last two."""

Law = dict[tuple[int, ...], float]
Grow = Callable[[Rng], DraftTree]
Rule = Callable[[DraftTree, NodeProbs, Rng], Verdict]
"""A verifier, or any function that takes the place of one."""


@dataclass(frozen=True, eq=False)
class Walk:
    """One way in which a block of drafting and verifying can fall, and its probability."""

    probability: float
    tree: DraftTree
    verdict: Verdict

    @property
    def tokens(self) -> tuple[int, ...]:
        return (
            *(self.tree.token_list[node] for node in self.verdict.path),
            self.verdict.next_token,
        )


def after(table: Table, tokens: tuple[int, ...]) -> Float[np.ndarray, " vocab"]:
    """The table's row after these tokens; before the first, the same token is assumed."""
    order = table.ndim - 1
    return as_array(table)[((tokens[0],) * order + tokens)[-order:]]


def at_nodes(table: Table, tree: DraftTree, first: int = 0) -> Float[np.ndarray, "nodes vocab"]:
    """The table's rows after each node from ``first`` on."""
    texts: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_list, tree.parent_list, strict=True):
        texts.append((*(texts[parent] if parent >= 0 else ()), token))
    return np.stack([after(table, text) for text in texts[first:]])


def drafting(shape: Shape, draft: Table, root: int = 0) -> Grow:
    """Grow this shape below ``root`` with a table for a draft model."""

    def grow(rng: Rng) -> DraftTree:
        expand: Expand = lambda tree, first: at_nodes(draft, tree, first)  # noqa: E731
        return shape.grow(root, expand, rng)

    return grow


def plain_tree(widths: tuple[int, ...], draw: Draw, draft: Table, root: int = 0) -> Grow:
    """The plainest way to grow a tree of given widths, with any draw.

    What is not drawn is the likeliest.
    """
    if draw == "named":
        return _named_tree(widths, draft, root)

    def grow(rng: Rng) -> DraftTree:
        tokens, parents, level, rows = [root], [-1], [0], []
        for width in widths:
            above, level = level, []
            probs = at_nodes(draft, DraftTree.of(tokens, parents), above[0])
            rows.append(probs)
            for node, row in zip(above, probs, strict=True):
                level += range(len(tokens), len(tokens) + width)
                tokens += _children(row, width, draw, rng)
                parents += [node] * width
        probs = np.concatenate(rows) if rows else None
        return DraftTree(np.array(tokens), np.array(parents), probs, draw)

    return grow


def _named_tree(widths: tuple[int, ...], draft: Table, root: int) -> Grow:
    """Children in turn of two drafters: of one without replacement, of a surer one with it."""

    def grow(rng: Rng) -> DraftTree:
        tokens, parents, drawn_from, level = [root], [-1], [0], [0]
        rows: list[Float[np.ndarray, " vocab"]] = []
        for width in widths:
            above, level = level, []
            probs = at_nodes(draft, DraftTree.of(tokens, parents), above[0])
            for node, row in zip(above, probs, strict=True):
                left, surer = row.copy(), row**2 / (row**2).sum()
                for place in range(width):
                    drawn_from.append(len(rows))
                    rows.append(surer if place % 2 else left / max(left.sum(), 1e-30))
                    level.append(len(tokens))
                    tokens.append(int(rng.draw_distinct(rows[-1][None], 1)[0, 0]))
                    parents.append(node)
                    if place % 2 == 0:
                        left[tokens[-1]] = 0.0
        probs = np.stack(rows) if rows else None
        held = None if probs is None else np.array(drawn_from)
        return DraftTree(np.array(tokens), np.array(parents), probs, "named", drawn_from=held)

    return grow


def _children(row: Float[np.ndarray, " vocab"], width: int, draw: Draw, rng: Rng) -> list[int]:
    if draw == "independent":
        return rng.draw_independent(row[None], width)[0].tolist()
    if draw == "distinct":
        return rng.draw_distinct(row[None], width)[0].tolist()
    if draw in ("chosen", "coupled"):
        return topk(row[None], width)[0].tolist()
    certain, rest = topk(row[None], width - 1)[0], row.copy()
    rest[certain] = 0.0
    return [*certain.tolist(), int(rng.draw_distinct(rest[None], 1)[0, 0])]


def walks(verifier: Rule, grow: Grow, target: Table) -> list[Walk]:
    """Every way in which drafting and verifying one block can fall."""
    found = []
    for drafted, tree in outcomes(grow):
        rows = at_nodes(target, tree)
        for decided, verdict in outcomes(
            lambda rng, tree=tree, rows=rows: verifier(tree, rows, rng)
        ):
            found.append(Walk(drafted * decided, tree, verdict))
    return found


def target_law(target: Table, length: int, start: tuple[int, ...] = (0,)) -> Law:
    """Exact distribution of the next ``length`` tokens of the target itself."""
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*tokens, token): probability * chance
            for tokens, probability in law.items()
            for token, chance in enumerate(after(target, (*start, *tokens)).tolist())
            if chance > 0.0
        }
    return law


def sampled_law(model: Model, sampler: Sampler, context: Context, length: int) -> Law:
    """Exact distribution of the next ``length`` tokens of a model under sampling options.

    The model reads each text again and as a whole, and each text is a context of its own, so that
    penalties are counted as in plain decoding.
    """
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for tokens, probability in law.items():
            text = context.extended(tokens)
            session = model.start()
            row = session.extend(text.tokens, "last").rows
            session.close()
            chances = enumerate(sampler.probs(row, [text])[0].tolist())
            longer |= {
                (*tokens, token): probability * chance for token, chance in chances if chance > 0.0
            }
        law = longer
    return law


def emitted_law(verifier: Rule, grow: Grow, target: Table, length: int) -> Law:
    """Exact distribution of the first ``length`` tokens after the root: one block, then the target.

    Equals ``target_law`` for every length exactly if the verifier loses nothing. Lengths up to one
    more than the tree is deep see all of the verifier's work.
    """
    return law_of(walks(verifier, grow, target), target, length)


def law_of(found: list[Walk], target: Table, length: int) -> Law:
    """The same from walks that are already enumerated."""
    emitted: Law = {}
    for walk in found:
        start = (walk.tree.token_list[0], *walk.tokens)[: length + 1]
        emitted[start] = emitted.get(start, 0.0) + walk.probability
    law: Law = {}
    for start, probability in emitted.items():
        for rest, chance in target_law(target, length + 1 - len(start), start).items():
            tokens = (*start, *rest)[1:]
            law[tokens] = law.get(tokens, 0.0) + probability * chance
    return law


def mean_accepted(verifier: Rule, grow: Grow, target: Table) -> float:
    """Exact mean number of drafted tokens that one block keeps."""
    return sum(walk.probability * len(walk.verdict.path) for walk in walks(verifier, grow, target))


def distance(law: Mapping[tuple[int, ...], float], other: Mapping[tuple[int, ...], float]) -> float:
    """Total variation distance, between 0 and 1."""
    return sum(abs(law.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in {*law, *other}) / 2
