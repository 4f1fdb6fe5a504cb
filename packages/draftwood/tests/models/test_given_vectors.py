"""Vectors in the place of tokens: a pass over embeddings is the pass over their tokens, and over a
mixture that of the model's own code.
"""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood.models.model import ForwardInput, PromptInput
from draftwood.models.native import NativeModel
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from families import FAMILIES, LEAN_PATHS, VOCAB, assert_close, hf_model, model_of, some_tokens
from hybrids import model_of as hybrid_of

TEXT = some_tokens(9, seed=1)
WEIGHTS = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
MIXED = torch.tensor([[3, 17, 39], [0, 8, 21]])
ALL = [*FAMILIES, *LEAN_PATHS]
ALL.remove("gemma4-inputs/native")  # whose layers read tokens


def mixtures(model: Any, weights: Tensor = WEIGHTS) -> Tensor:
    """Two mixtures of three tokens' embeddings each, [2 dim]."""
    rows = model.embeddings_and_head.embed(MIXED.flatten()).float().reshape(2, 3, -1)
    return (weights[:, :, None] * rows).sum(1)


@torch.no_grad()
def own_logits(family: str, before: list[int], vectors: Tensor, after: list[int]) -> Tensor:
    """The model's own logits at every place of tokens, vectors and tokens, without any cache."""
    model: Any = hf_model(family)
    embed = model.get_input_embeddings()
    rows = [embed(torch.tensor(before)), vectors, embed(torch.tensor(after, dtype=torch.long))]
    return model(inputs_embeds=torch.cat(rows)[None], use_cache=False).logits[0]


def given(session: Any, vectors: Any, **more: Any) -> Any:
    """Run vectors behind a sequence."""
    return session.extend((), embeddings=vectors, **more)


@pytest.mark.parametrize("family", ALL)
def test_mixtures_are_read_as_the_model_itself_reads_them(family: str) -> None:
    model = model_of(family)
    vectors, session = mixtures(model), model.start()
    session.extend(TEXT)
    found = given(session, vectors).logits
    assert session.length == len(TEXT) + 2
    tree = DraftTree.chain([5, 30])
    found = torch.cat([found, session.forward(tree).logits])
    assert_close(found, own_logits(family, TEXT, vectors, [5, 30])[len(TEXT) :])


@pytest.mark.parametrize("family", ["llama", "gemma2/lean", "granite/native", "llama/recorded"])
def test_a_wrong_weight_would_be_noticed(family: str) -> None:
    """Negative control: mixtures with weights in another order say something else."""
    model = model_of(family)
    session = model.start()
    session.extend(TEXT)
    found = given(session, mixtures(model, WEIGHTS.flip(1))).logits
    assert (found - own_logits(family, TEXT, mixtures(model), [])[len(TEXT) :]).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["llama", "gemma2/lean", "granite/lean", "qwen3/native"])
def test_embeddings_of_tokens_give_what_the_tokens_give(family: str) -> None:
    model = model_of(family)
    one, other = model.start(), model.start()
    rows = one.extend(TEXT, hidden=(2,))
    found = given(other, model.embeddings_and_head.embed(torch.tensor(TEXT)), hidden=(2,))
    assert_close(found.logits, rows.logits)
    assert_close(found.states(2), rows.states(2))


def test_one_pass_takes_vectors_beside_tokens_and_trees() -> None:
    for model in (model_of("llama"), model_of("llama/lean"), model_of("llama/native")):
        sessions, alone = ([model.start() for _ in range(3)] for _ in range(2))
        for each in (*sessions, *alone):
            each.extend(TEXT)
        vectors, tree = mixtures(model).numpy(), DraftTree.of([1, 2, 3], [-1, 0, 0])
        told = [
            [
                PromptInput(own[0], (), "all", embeddings=vectors),
                PromptInput(own[1], [4, 5], "all"),
                ForwardInput(own[2], tree),
            ]
            for own in (sessions, alone)
        ]
        single = [model.forward([each])[0].logits for each in told[1]]
        for one, other in zip(model.forward(told[0]), single, strict=True):
            assert_close(one.logits, other)


@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/native"])
def test_vectors_of_another_shape_are_refused_by_name(family: str) -> None:
    session = model_of(family).start()
    for wrong in (np.zeros((0, 32), np.float32), np.zeros((2, 31)), np.zeros(32)):
        with pytest.raises(ValueError, match="at least one vector of 32 numbers"):
            given(session, wrong)
    with pytest.raises(ValueError, match="without tokens"):
        session.extend([1], embeddings=np.zeros((1, 32)))
    assert session.length == 0


def test_models_that_cannot_say_so_and_name_a_cure() -> None:
    table = TableModel(np.eye(4))
    recurrent = hybrid_of("lfm2")
    wanted = r"needs a model that reads vectors in the place of tokens .*; load it in one process"
    for model in (table, recurrent):
        assert "embeddings" not in model.abilities
        with pytest.raises(ValueError, match=wanted):
            given(model.start(), np.zeros((1, model.hidden_size)))


@pytest.mark.parametrize("kind", [TransformersModel, LeanModel, NativeModel])
def test_a_model_in_bfloat16_takes_vectors_of_any_type(kind: Any) -> None:
    half = copy.deepcopy(hf_model("llama")).to(torch.bfloat16)
    model = kind(half)
    vectors = mixtures(model)
    for each in (vectors, vectors.double(), vectors.numpy()):
        logits = given(model.start(), each).logits
        assert logits.shape == (2, VOCAB)
        assert torch.isfinite(logits.float()).all()
