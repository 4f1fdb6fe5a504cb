"""Rows that heads share with their target give logits on the target's own scale."""

from typing import Any

import numpy as np
import pytest
import torch

from draftwood.arrays import as_array
from draftwood.heads.scaled_rows import scaled_rows
from draftwood.learning.learner import output_rows
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood_torch.heads.placed import placed
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from families import FAMILIES, random_model
from tiny_heads import tiny_eagle

TOKENS = np.arange(1, 40, 3)
NATIVE = pytest.param(
    lambda model: NativeModel(model, "float32"),
    id="native",
    marks=pytest.mark.skipif(not library.available(), reason="there is no C++ compiler"),
)
PATHS = [NATIVE, LeanModel, TransformersModel]


def scaled(family: str) -> Any:
    """A model of a family whose logits are multiplied with 0.25, if with anything."""
    return random_model(*FAMILIES[family])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("family", "scale"), [("llama", 1.0), ("granite", 0.25), ("cohere", 0.25)])
def test_rows_have_the_factor_of_the_logits(family: str, scale: float, path: Any) -> None:
    target = path(scaled(family))
    rows = as_array(target.embeddings_and_head.weights().head)[TOKENS]
    assert np.array_equal(as_array(scaled_rows(target, TOKENS)), scale * rows)


def test_a_bias_is_no_factor() -> None:
    hf_model = scaled("llama")
    hf_model.lm_head.bias = torch.nn.Parameter(torch.randn(hf_model.config.vocab_size))
    target = TransformersModel(hf_model)
    rows = as_array(target.embeddings_and_head.weights().head)[TOKENS]
    np.testing.assert_allclose(as_array(scaled_rows(target, TOKENS)), rows, rtol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", ["granite", "cohere"])
def test_heads_in_pytorch_and_learners_give_logits_as_the_target_does(
    family: str, path: Any
) -> None:
    target = path(scaled(family))
    trained = tiny_eagle(target, TOKENS.tolist())
    states = torch.randn(5, target.hidden_size)
    wanted = as_array(target.embeddings_and_head.logits(states, TOKENS, normed=True))
    own = as_array(placed(trained, target).logits(states))
    learnt = states.numpy() @ as_array(output_rows(trained, target)).T
    np.testing.assert_allclose(own, wanted, atol=1e-5)
    np.testing.assert_allclose(learnt, wanted, atol=1e-4)
