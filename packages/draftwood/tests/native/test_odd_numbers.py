"""NaN and overflow in weights, scores and states: the logits say so, whatever formats and caches
hold, and rows beside them keep their bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.matrix import Matrix
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
NANS = (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001)
"""Bits of float32; rounding the first two as if they were numbers carries into the sign."""


@dataclass(frozen=True)
class Kind:
    """Ways in which a model stores and multiplies.

    Attributes:
        heads: of 128 entries together; with 2 the CPU may multiply pairs of bfloat16.
    """

    products: Any = None
    cache: Any = None
    dtype: Any = None
    heads: int = 4

    def model(self, hf_model: Any) -> NativeModel:
        """Make the native model of a Transformers model."""
        return NativeModel(hf_model, self.products, self.dtype, cache=self.cache)


KINDS = {
    "float32": Kind(),
    "bfloat16": Kind("bfloat16", dtype="bfloat16"),
    "bfloat16 in pairs": Kind("bfloat16", dtype="bfloat16", heads=2),
    "int8": Kind("int8"),
    "byte cache": Kind(cache="int8"),
    "int8, byte cache": Kind("int8", "int8"),
}
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

of_each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def hf_model(kind: Kind) -> Any:
    return tiny_llama(0, dim=128, heads=kind.heads)


def part_of(network: Any, name: str) -> torch.Tensor:
    layer = network.model.layers[0]
    return getattr(layer.mlp if name in PARTS[4:] else layer.self_attn, name).weight.data


def logits(model: NativeModel, tokens: list[int] = PROMPT) -> np.ndarray:
    return np.asarray(model.start().extend(tokens).logits)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("part", PARTS)
@of_each_kind
def test_an_odd_weight_reaches_the_logits(kind: Kind, part: str, value: float) -> None:
    network = hf_model(kind)
    part_of(network, part)[3, 5] = value
    assert np.isnan(logits(kind.model(network))).all()


@of_each_kind
def test_scores_that_overflow_reach_the_logits(kind: Kind) -> None:
    network = hf_model(kind)
    for part in ("q_proj", "k_proj"):
        part_of(network, part).mul_(1e20)
    assert np.isnan(logits(kind.model(network))[-1]).all()


@of_each_kind
def test_an_odd_embedding_reaches_all_rows_behind_it(kind: Kind) -> None:
    network = hf_model(kind)
    exact = logits(kind.model(network), PROMPT[:2])
    network.model.embed_tokens.weight.data[7, 3] = torch.nan
    found = logits(kind.model(network))
    assert np.array_equal(found[:2], exact)
    assert np.isnan(found[2:]).all()


@of_each_kind
def test_rows_keep_their_bits_beside_an_odd_one(kind: Kind) -> None:
    """Compare trees whose second node is odd, and seen by the third alone."""
    network = hf_model(kind)
    network.model.embed_tokens.weight.data[7, 3] = torch.nan
    model, parents = kind.model(network), [-1, 0, 1, 0, 3]
    rows = []
    for token in (8, 7):
        session = model.start()
        session.extend([5, 6, 9, 10])
        tree = DraftTree.of([11, token, 12, 13, 14], parents)
        rows.append(np.asarray(session.forward(tree).logits))
    assert np.isnan(rows[1][[1, 2]]).all()
    assert np.array_equal(rows[0][[0, 3, 4]], rows[1][[0, 3, 4]])
    assert np.isfinite(rows[0]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8", "int4"])
def test_an_odd_input_spoils_its_row_alone(products: Any, value: float) -> None:
    chance = np.random.default_rng(0)
    matrix = Matrix.pack(chance.normal(size=(20, 64)).astype(np.float32), None, products)
    rows = chance.normal(size=(2, 64)).astype(np.float32)
    exact = matrix.multiply(rows)
    for place in range(64):
        odd = rows.copy()
        odd[0, place] = value
        found = matrix.multiply(odd)
        assert not np.isfinite(found[0]).any(), place
        assert np.array_equal(found[1], exact[1])


@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8", "int4"])
def test_an_odd_weight_spoils_its_output_alone(products: Any) -> None:
    chance = np.random.default_rng(0)
    weights = chance.normal(size=(20, 64)).astype(np.float32)
    rows = chance.normal(size=(3, 64)).astype(np.float32)
    exact = Matrix.pack(weights, None, products).multiply(rows)
    for place in range(64):
        odd = weights.copy()
        odd[3, place] = np.nan
        found = Matrix.pack(odd, None, products).multiply(rows)
        assert np.isnan(found[:, 3]).all(), place
        assert np.array_equal(np.delete(found, 3, 1), np.delete(exact, 3, 1))


@pytest.mark.parametrize("bits", NANS, ids=hex)
@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8", "int4"])
def test_nan_of_any_bits_stays_one(products: Any, bits: int) -> None:
    odd = np.ones((16, 32), np.float32)
    odd.view(np.uint32)[0, 0] = bits
    packed, ones = Matrix.pack(odd, None, products), np.ones((16, 32), np.float32)
    assert np.isnan(packed.floats()[0, 0])
    assert np.isnan(packed.multiply(ones)[:, 0]).all()
    assert np.isnan(Matrix.pack(ones, None, products).multiply(odd)[0]).all()
