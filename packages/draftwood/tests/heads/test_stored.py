"""Blocks of a head's file are packed as they are; floats are made of them where they are read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftwood.heads.folder import load, save
from draftwood.heads.packed import native_eagle
from draftwood.heads.shapes import BlockFormat, as_stored, is_finite
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.native import library
from draftwood.native.formats import Products
from draftwood.native.head import NativeHead
from draftwood.native.matrix import Blocks, Matrix
from native_heads import CONFIGS, VOCABULARY, a_head, drafted, features_of, some

pytestmark = pytest.mark.skipif(
    not (library.available() and library.instructions(True)), reason="needs fast 8-bit products"
)
SIZES = replace(CONFIGS["tiny"].sizes, hidden=64, intermediate_size=96)
CONFIG = replace(CONFIGS["tiny"], sizes=SIZES)
FORMATS = [("Q4_1", "int4"), ("Q8_0", "int8")]


def in_blocks(folder: Path, format: BlockFormat) -> TrainedHead:
    """A head that was stored in blocks and loaded."""
    target = TargetFingerprint("tiny", VOCABULARY, SIZES.hidden, 8)
    tokens = np.arange(0, VOCABULARY, 3)
    trained = TrainedHead.with_fingerprint(a_head(CONFIG)[0], tokens, target)
    return load(save(folder, trained, "", dtype=format))


@pytest.mark.parametrize(("format", "products"), FORMATS)
def test_a_head_of_blocks_drafts_what_one_of_their_floats_drafts(
    tmp_path: Path, format: BlockFormat, products: Products
) -> None:
    trained = in_blocks(tmp_path / "head", format)
    given = {
        "draft_tokens": trained.draft_tokens,
        "lm_rows": some(len(trained.draft_tokens), SIZES.hidden, seed=2),
        "embedding": some(VOCABULARY, SIZES.hidden, seed=4),
        "products": products,
    }

    def tree(head: NativeHead) -> object:
        return drafted(head.start(), features_of(CONFIG, 6), list(range(6)), (16, 4, 4))

    blocks = as_stored(trained.weights)
    assert sum(isinstance(each, Blocks) for each in blocks.values()) == 8  # nothing read them
    kept = tree(native_eagle(CONFIG, blocks, **given))
    floats = {name: trained.weights[name] for name in trained.weights}
    assert kept == tree(native_eagle(CONFIG, floats, **given))
    halved = floats | {"fc.weight": floats["fc.weight"] / 2}
    assert kept != tree(native_eagle(CONFIG, halved, **given))


@pytest.mark.parametrize(("format", "products"), FORMATS)
def test_blocks_multiply_as_their_floats(
    tmp_path: Path, format: BlockFormat, products: Products
) -> None:
    trained = in_blocks(tmp_path / "head", format)
    for name, stored in as_stored(trained.weights).items():
        if isinstance(stored, Blocks):
            kept = Matrix.pack(stored, None, products)
            made = Matrix.pack(trained.weights[name], None, products)
            rows = np.random.default_rng(0).normal(size=(3, kept.shape[1])).astype(np.float32)
            assert kept.format == made.format == format
            assert np.array_equal(kept.multiply(rows), made.multiply(rows))


def test_weights_that_were_read_stay_as_somebody_changed_them(tmp_path: Path) -> None:
    weights = in_blocks(tmp_path / "head", "Q4_1").weights
    weights["fc.weight"][0, 0] = 5
    assert weights["fc.weight"][0, 0] == 5
    read = as_stored(weights)["fc.weight"]
    assert not isinstance(read, Blocks)
    assert read[0, 0] == 5


@pytest.mark.parametrize("format", ["Q4_1", "Q8_0"])
def test_scales_that_are_no_numbers_are_found(tmp_path: Path, format: BlockFormat) -> None:
    stored = as_stored(in_blocks(tmp_path / "head", format).weights)["fc.weight"]
    assert is_finite(stored)
    for number in (np.inf, np.nan):
        damaged = stored.stored.copy()
        damaged[0, :2] = np.array([number], np.float16).view(np.uint8)
        assert not is_finite(replace(stored, stored=damaged))
    if format == "Q4_1":
        damaged = stored.stored.copy()
        damaged[-1, 2:4] = np.array([-np.inf], np.float16).view(np.uint8)  # the least weight
        assert not is_finite(replace(stored, stored=damaged))
