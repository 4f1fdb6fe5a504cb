"""Heads in blocks of 4 or 8 bits: smaller than in bfloat16, and each drafts for its target."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftwood import methods
from draftwood.engine import Options, generate
from draftwood.heads.folder import load, save
from draftwood.heads.places import WEIGHTS
from draftwood.heads.shapes import BlockFormat
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.methods import Method
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.testing import tiny_llama
from draftwood_train.cli.recipe import recipe_names
from draftwood_train.recipes.masked import OF_LLAMA
from draftwood_train.registry import recipe_class
from tiny_heads import TINY
from training_cases import LAYERS, SIZES, VOCAB, target

FORMATS: tuple[BlockFormat, ...] = ("Q8_0", "Q4_1")


@pytest.mark.parametrize("name", recipe_names())
def test_a_head_of_a_recipe_is_smaller_in_blocks(name: str, tmp_path: Path) -> None:
    sizes = replace(SIZES, hidden=64, intermediate_size=128, head_dim=16)
    own = replace(target(), sizes=sizes, embedding=target().embedding.repeat(1, 4))
    layer = dict.fromkeys(OF_LLAMA, own.embedding)  # whose shapes nothing looks at here
    own = replace(own, head=own.embedding[own.draft_tokens], last_layers=[layer] * LAYERS)
    network = recipe_class(name)().build(own)
    fingerprint = TargetFingerprint("tiny", VOCAB, sizes.hidden, LAYERS)
    trained = TrainedHead.with_fingerprint(network, own.draft_tokens, fingerprint)
    stored = [
        (save(tmp_path / format, trained, "", format) / WEIGHTS).stat().st_size
        for format in ("bfloat16", *FORMATS)
    ]
    assert stored[0] > stored[1] > stored[2]
    for format in FORMATS:
        found = load(tmp_path / format)
        for part, weight in trained.weights.items():
            assert np.abs(found.weights[part] - weight).max() <= 0.08 * np.abs(weight).max(), part


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("method", "tiny"), TINY.items(), ids=TINY)
def test_packed_heads_draft_and_the_text_is_the_targets(
    method: str,
    tiny: Callable[[Model], TrainedHead],
    format: BlockFormat,
    tmp_path: Path,
) -> None:
    model = NativeModel(tiny_llama(0, layers=6))
    packed = load(save(tmp_path / "head", tiny(model), "", format))
    drafted = written(model, methods.build(method, model, head=packed))
    plain = written(model, methods.build("plain", model))
    assert drafted[0] == plain[0]
    assert drafted[1] > plain[1] == 0


def written(model: Model, method: Method) -> tuple[list[int], int]:
    """A greedy text of a method, and the tokens that it drafted."""
    options = Options(Sampling(0.0), 16, seed=0)
    steps = list(generate(model, method.drafter, method.verifier, [1, 2, 3], options))
    return [token for step in steps for token in step.tokens], sum(step.drafted for step in steps)
