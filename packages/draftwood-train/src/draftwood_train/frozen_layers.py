"""The target's layers in PyTorch, frozen: they run packed texts, and rows below their places."""

from collections.abc import Callable, Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood.native.formats import HeadSizes
from draftwood_torch.heads import layers as parts
from draftwood_train.recipe import PackedRows, TargetWeights
from draftwood_train.target import MATRICES

OFF = 0.25
"""Largest median difference of final states from the data's, as a share of their length. Weights
and states in 8 bits make 0.04; a target with parts that are not run here makes 1.
"""
Product = Callable[[str, Tensor, Tensor], Tensor]
"""Function from a matrix's name, its weight [outputs inputs] and rows to their product."""
KeysAndValues = tuple[Tensor, Tensor]


class HasProducts(Protocol):
    """An adapter of rows, as its layers multiply."""

    def product(self, layer: int, name: str, base: Tensor, rows: Tensor) -> Tensor: ...


def plain(name: str, base: Tensor, rows: Tensor) -> Tensor:
    """The product with the target's own matrix."""
    return functional.linear(rows, base)


class FrozenLayer:
    """A decoder layer as Llama's, with the target's weights.

    Args:
        weights: by their names in Transformers.
        like: a tensor whose type and device the matrices take.
    """

    def __init__(self, weights: Mapping[str, Tensor], sizes: HeadSizes, like: Tensor) -> None:
        self.sizes = sizes
        self.matrices = {own: weights[f"{name}.weight"].to(like) for own, name in MATRICES.items()}
        self.norms = [
            weights[f"{name}.weight"].to(like.device)
            for name in ("input_layernorm", "post_attention_layernorm")
        ]

    def __call__(
        self,
        state: Float[Tensor, "batch rows dim"],
        positions: Int[Tensor, "batch rows"],
        seen: Bool[Tensor, "batch rows context"],
        product: Product = plain,
        before: KeysAndValues | None = None,
    ) -> tuple[Float[Tensor, "batch rows dim"], KeysAndValues]:
        """Run rows; give their states and their keys and values.

        Args:
            seen: which rows they see, those of ``before`` first.
            product: that of each matrix.
            before: keys and values of other rows.
        """

        def times(name: str, rows: Tensor) -> Tensor:
            return product(name, self.matrices[name], rows)

        normed, theta = self._normed(state, 0), self.sizes.rope_theta
        query, key, value = (self._split(times(name, normed)) for name in ("query", "key", "value"))
        own = parts.rotated(key, positions, theta), value
        query = parts.rotated(query, positions, theta)
        keys, values = (
            own
            if before is None
            else [torch.cat(both, dim=-2) for both in zip(before, own, strict=True)]
        )
        mixed = parts.attended(query, keys, values, seen)
        state = state + times("output", mixed.transpose(-2, -3).flatten(-2))
        normed = self._normed(state, 1)
        gated = functional.silu(times("gate", normed)) * times("up", normed)
        return state + times("down", gated), own

    def _normed(self, state: Tensor, number: int) -> Tensor:
        return normed(state, self.norms[number], self.sizes.epsilon)

    def _split(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (-1, self.sizes.head_dim)).transpose(-2, -3)


def normed(
    state: Float[Tensor, "... dim"], weight: Float[Tensor, " dim"], epsilon: float
) -> Float[Tensor, "... dim"]:
    """Root mean square norm in float32."""
    return functional.rms_norm(state.float(), weight.shape, weight.float(), epsilon)


_FROZEN: WeakKeyDictionary[TargetWeights, list[FrozenLayer]] = WeakKeyDictionary()


def frozen_layers(target: TargetWeights) -> list[FrozenLayer]:
    """The target's layers in the type of its output head; made once."""
    if target not in _FROZEN:
        _FROZEN[target] = [
            FrozenLayer(weights, target.sizes, target.head) for weights in target.last_layers
        ]
    return _FROZEN[target]


def rows_below(
    head: HasProducts,
    vectors: Float[Tensor, "places dim"],
    rows: PackedRows,
    target: TargetWeights,
    order: Int[Tensor, "rows anchors"],
) -> Float[Tensor, "rows anchors places dim"]:
    """States, after the final norm, of adapted rows behind some places of packed texts.

    Row i behind a place stands i + 1 positions further; it sees the text up to that place, and the
    rows from the first one behind it to itself.

    Args:
        head: what acts on these rows.
        vectors: that they read.
        order: the places.

    Raises:
        ValueError: where the layers say something else than the data hold of the text.
    """
    epsilon, (count, width) = target.sizes.epsilon, vectors.shape
    assert target.final_norm is not None
    final_norm = target.final_norm.to(vectors.device)
    text = functional.embedding(rows.tokens, target.embedding).float()
    below = vectors.float().expand(*order.shape, count, width).flatten(1, 2)
    behind = torch.arange(count, device=order.device)
    positions = (rows.positions.gather(-1, order)[..., None] + 1 + behind).flatten(1)
    text_seen, seen = _seen(rows, order, count)
    for number, layer in enumerate(frozen_layers(target)):
        with torch.no_grad():
            text, known = layer(text, rows.positions, text_seen)

        def product(name: str, base: Tensor, given: Tensor, number: int = number) -> Tensor:
            return head.product(number, name, base, given)

        below, _ = layer(below, positions, seen, product, known)
    _require_same(normed(text, final_norm, epsilon), rows)
    return normed(below, final_norm, epsilon).unflatten(1, (-1, count))


def _seen(
    rows: PackedRows, order: Tensor, count: int
) -> tuple[Bool[Tensor, "rows places places"], Bool[Tensor, "rows below all"]]:
    """Mask what each place of a text sees, and each row below its places."""
    segments = rows.segments
    same = segments[:, :, None] == segments[:, None, :]
    text = same & torch.ones_like(same).tril()
    far = text[torch.arange(len(order), device=order.device)[:, None], order]
    anchors = order.shape[1]
    square = torch.ones(count, count, dtype=torch.bool, device=order.device).tril()
    near = torch.block_diag(*[square] * anchors).expand(len(order), -1, -1)
    return text, torch.cat([far.repeat_interleave(count, dim=1), near], dim=-1)


def has_beginning(rows: PackedRows) -> Bool[Tensor, "rows places"]:
    """True at places of texts that begin in their row, not of further pieces of a long one."""
    places = torch.arange(rows.tokens.shape[1], device=rows.tokens.device)
    begin = places - rows.positions
    same = rows.segments.gather(-1, begin.clamp(min=0)) == rows.segments
    return same & (begin >= 0) & (rows.segments >= 0)


def _require_same(states: Float[Tensor, "rows places dim"], rows: PackedRows) -> None:
    """Raise ValueError where final states are not those of the data."""
    whole = has_beginning(rows)
    if not bool(whole.any()):
        return
    true = rows.final[whole].float()
    differences = (states[whole] - true).norm(dim=-1) / true.norm(dim=-1).clamp(min=1e-9)
    off = float(differences.median())
    if not off < OFF:
        raise ValueError(
            f"the target's layers give states that differ from the data's by {off:.2f} of their"
            " length: it has parts that Llama has not; train a drafter of another kind for it"
        )
