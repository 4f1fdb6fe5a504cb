"""Sum a text's chance over all trees that could have produced it.

    python -m draftwood_choices.forms.latent_trees "a b a c"

After recursive top-down production (Tan et al. 2020, arXiv:2010.04704). A node of a binary tree
stops and becomes a leaf with one word, or splits in two; at the greatest depth it stops. Its
vector gives its chance to stop, its words and its children's vectors. A tree's log-probability is

    sum over inner nodes u of split(u) + sum over leaves v of stop(v) + word(v, y_v)

A node hands its split to its two children in halves. In every tree the shares of the leaves below
a node make one whole, so a tree's probability is a product over its leaves alone, and the sum over
trees is a walk over leaves from left to right. A node at depth d covers 2^(D - d) of the 2^D cells
that the deepest nodes cover; leaves of one tree lie edge to edge:

    alpha_0(0) = 1
    alpha_t(edge) = sum over nodes v that end at edge of alpha_{t-1}(start of v) score(v, y_t)
    P(y) = alpha_T(2^D)

The paper walks from node to node; nodes that end at one edge have the same followers, so here
they share a sum, and a step costs as many additions as there are nodes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from jaxtyping import Float

Leaves = tuple[int, ...]
"""A tree by its leaves, left to right; node n has the children 2n and 2n + 1, the root is 1."""


@dataclass(frozen=True)
class TreeLaw:
    """Distribution of trees and of their words.

    Row n belongs to node n; row 0 is unused.

    Attributes:
        depth: of the deepest nodes.
        stop: log-probability that a node is a leaf.
        split: log-probability that it has children; -inf for the deepest.
        words: log-probabilities of a leaf's word.
    """

    depth: int
    stop: Float[np.ndarray, " nodes"]
    split: Float[np.ndarray, " nodes"]
    words: Float[np.ndarray, "nodes vocab"]

    @classmethod
    def drawn(cls, depth: int, vocab: int, seed: int, width: int = 8) -> "TreeLaw":
        """Build a law from the vectors of a network with random weights."""
        rng = np.random.default_rng(seed)
        cells = rng.normal(0.0, 1.5 / np.sqrt(width), (2, width, width))
        vectors = np.zeros((2 << depth, width))
        vectors[1] = rng.normal(size=width)
        for node in range(2, 2 << depth):
            vectors[node] = np.tanh(cells[node % 2] @ vectors[node // 2])
        gates, words = vectors @ rng.normal(size=width), vectors @ rng.normal(size=(width, vocab))
        stop, split = -np.logaddexp(0.0, -gates), -np.logaddexp(0.0, gates)
        stop[1 << depth :], split[1 << depth :] = 0.0, -np.inf
        return cls(depth, stop, split, words - np.logaddexp.reduce(words, axis=1, keepdims=True))

    def cells(self, node: int) -> tuple[int, int]:
        """Edges at which a node starts and ends."""
        level = node.bit_length() - 1
        size = 1 << (self.depth - level)
        start = (node - (1 << level)) * size
        return start, start + size

    def leaf_scores(self) -> Float[np.ndarray, " nodes"]:
        """Each node's log-score as a leaf: its stop and its share of the splits above it."""
        shares = np.zeros_like(self.stop)
        for node in range(2, len(shares)):
            shares[node] = (shares[node // 2] + self.split[node // 2]) / 2
        return self.stop + shares

    def draw(self, rng: np.random.Generator, node: int = 1) -> tuple[Leaves, tuple[int, ...]]:
        """Draw a tree and its words from the top down."""
        if rng.random() < np.exp(self.stop[node]):
            return (node,), (int(rng.choice(self.words.shape[1], p=np.exp(self.words[node]))),)
        left, right = self.draw(rng, 2 * node), self.draw(rng, 2 * node + 1)
        return left[0] + right[0], left[1] + right[1]


def log_marginal(law: TreeLaw, text: Sequence[int]) -> float:
    """Log-probability of a text, summed over all trees; -inf for one that no tree can write."""
    return _walk(law, text, np.logaddexp.reduce)[0]


def likeliest_tree(law: TreeLaw, text: Sequence[int]) -> tuple[float, Leaves]:
    """Find the likeliest tree of a text, and the log-probability of both (Viterbi)."""
    return _walk(law, text, np.max)


def _walk(law: TreeLaw, text: Sequence[int], join: Callable[..., Any]) -> tuple[float, Leaves]:
    """Go over the text's leaves; also gives the tree of the largest terms."""
    scores, edges = law.leaf_scores(), (1 << law.depth) + 1
    ending: list[list[int]] = [[] for _ in range(edges)]
    for node in range(1, len(scores)):
        ending[law.cells(node)[1]].append(node)
    alpha = np.full(edges, -np.inf)
    alpha[0] = 0.0
    best: list[dict[int, int]] = []
    for word in text:
        follows = np.full(edges, -np.inf)
        chosen = dict[int, int]()
        for edge in range(1, edges):
            nodes = ending[edge]
            terms = alpha[[law.cells(node)[0] for node in nodes]] + scores[nodes]
            terms += law.words[nodes, word]
            follows[edge], chosen[edge] = join(terms), nodes[int(np.argmax(terms))]
        alpha = follows
        best.append(chosen)
    edge, leaves = edges - 1, list[int]()
    for chosen in reversed(best if np.isfinite(alpha[-1]) else []):
        leaves.append(chosen[edge])
        edge = law.cells(leaves[-1])[0]
    return float(alpha[-1]), tuple(reversed(leaves))


def trees(depth: int, node: int = 1) -> Iterator[Leaves]:
    """All trees: 2, 5, 26, 677 and 458330 for depths 1 to 5."""
    yield (node,)
    if node < 1 << depth:
        for left in trees(depth, 2 * node):
            for right in trees(depth, 2 * node + 1):
                yield left + right


def log_joint(law: TreeLaw, leaves: Leaves, text: Sequence[int]) -> float:
    """Log-probability of a tree with a text as its words, from the definition."""
    if len(leaves) != len(text):
        return -np.inf
    above = {leaf >> level for leaf in leaves for level in range(1, leaf.bit_length())}
    written = sum(law.stop[leaf] + law.words[leaf, w] for leaf, w in zip(leaves, text, strict=True))
    return float(written + sum(law.split[node] for node in above))


def drawing(leaves: Leaves, words: Sequence[str], node: int = 1) -> str:
    """Write a tree in brackets."""
    if node in leaves:
        return words[leaves.index(node)]
    return f"({drawing(leaves, words, 2 * node)} {drawing(leaves, words, 2 * node + 1)})"


@click.command()
@click.argument("text")
@click.option("--depth", type=click.IntRange(1, 4), default=4, show_default=True)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random network."
)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def main(text: str, depth: int, seed: int, as_json: bool) -> None:
    """Sum the chance of TEXT over all trees, twice: by a walk over leaves and tree by tree."""
    words = text.split()
    if not 1 <= len(words) <= 1 << depth:
        raise click.UsageError(
            f"a tree of depth {depth} writes 1 to {1 << depth} words, TEXT has {len(words)};"
            " change --depth or TEXT"
        )
    known = sorted(set(words))
    tokens, law = [known.index(word) for word in words], TreeLaw.drawn(depth, len(known), seed)
    each = [log_joint(law, leaves, tokens) for leaves in trees(depth) if len(leaves) == len(words)]
    best, leaves = likeliest_tree(law, tokens)
    total = log_marginal(law, tokens)
    found = {
        "trees": len(each),
        "log_prob": total,
        "log_prob_tree_by_tree": float(np.logaddexp.reduce(each)),
        "likeliest_tree": drawing(leaves, words),
        "its_share": float(np.exp(best - total)),
    }
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        shown = f"{value:.12g}" if isinstance(value, float) else value
        click.echo(f"{name.replace('_', ' ')}: {shown}")


if __name__ == "__main__":
    main()
