"""Embedding and output head equal those of Transformers on every path, parts of the vocabulary
included.
"""

import copy
import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, OPTConfig

from draftwood.models.native import NativeModel, has_int8
from draftwood.testing import TableModel
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.embeddings_and_head import final_norm
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.tensors import as_tensor
from families import (
    FAMILIES,
    LEAN_PATHS,
    SIZES,
    VOCAB,
    AnyModel,
    apart,
    ending_of,
    hf_model,
    model_of,
    some_tokens,
)

PART = torch.tensor([39, 0, 17, 16, 15, 3, 17])  # over all tiles of 16, in no order, one twice
TEXT = some_tokens(12, seed=1)
needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)


ALL = [*FAMILIES, *LEAN_PATHS]
PATHS = ("", "/lean", "/native")
SCALED = ["gemma2", "granite", "cohere2"]  # they do more than a product at either end


@pytest.mark.parametrize("family", ALL)
def test_the_embedding_is_that_of_transformers(family: str) -> None:
    hf, model = hf_model(family), model_of(family)
    tokens = torch.tensor(TEXT)
    embedded = model.embeddings_and_head.embed(tokens)
    assert embedded.dtype == hf.dtype
    assert embedded.shape == (len(TEXT), model.hidden_size)
    with torch.no_grad():
        assert torch.equal(embedded, hf.get_input_embeddings()(tokens))
        read = hf(inputs_embeds=embedded[None], use_cache=False).logits
        assert torch.equal(read, hf(input_ids=tokens[None], use_cache=False).logits)


@pytest.mark.parametrize("family", ALL)
def test_norm_and_output_head_are_those_of_transformers(family: str) -> None:
    before, after, logits = ending_of(hf_model(family), TEXT)
    head = model_of(family).embeddings_and_head
    assert apart(head.logits(before), logits) <= 1e-5
    assert apart(head.logits(after, normed=True), logits) <= 1e-5
    assert apart(head.logits(before[:1]), logits[:1]) <= 1e-5
    for part in (PART, PART[:1], torch.arange(VOCAB)):
        assert apart(head.logits(before, part), logits[:, part]) <= 1e-5
        assert apart(head.logits(after, part, normed=True), logits[:, part]) <= 1e-5


@pytest.mark.parametrize("family", [f"{each}{path}" for each in SCALED for path in PATHS])
def test_what_models_do_to_logits_would_be_missed(family: str) -> None:
    """Negative control: the head alone says something else than these models."""
    hf: Any = hf_model(family)
    before, after, logits = ending_of(hf, TEXT)
    with torch.no_grad():
        assert apart(hf.get_output_embeddings()(after), logits) > 1e-3
    assert apart(model_of(family).embeddings_and_head.logits(before), logits) <= 1e-5


@pytest.mark.parametrize("family", ["llama", "stablelm/lean", "qwen3/native"])
def test_a_wrong_norm_or_part_would_be_noticed(family: str) -> None:
    """Negative control."""
    before, after, logits = ending_of(hf_model(family), TEXT)
    head = model_of(family).embeddings_and_head
    assert apart(head.logits(before, normed=True), logits) > 1e-2
    assert apart(head.logits(after), logits) > 1e-2
    assert apart(head.logits(before, PART.flip(0)), logits[:, PART]) > 1e-2


@pytest.mark.parametrize("family", [*SCALED, "llama", "llama-scaled", "stablelm", "qwen3"])
@pytest.mark.parametrize("path", [TransformersModel, LeanModel, NativeModel])
def test_in_bfloat16_up_to_its_rounding(path: Any, family: str) -> None:
    half = copy.deepcopy(hf_model(family)).to(torch.bfloat16)
    before, after, logits = ending_of(half, TEXT)
    model: AnyModel = path(half)
    embedded = model.embeddings_and_head.embed(PART)
    assert torch.equal(embedded.float(), half.get_input_embeddings()(PART).float())
    for given, normed in ((before, False), (after, True)):
        found = model.embeddings_and_head.logits(given, normed=normed)
        assert (found - logits).norm() < 0.03 * logits.norm()
        part = model.embeddings_and_head.logits(given, PART, normed=normed)
        assert (part - logits[:, PART]).norm() < 0.03 * logits[:, PART].norm()


@needs_int8
@pytest.mark.parametrize("family", [*SCALED, "llama", "llama-scaled", "stablelm"])
def test_in_int8_within_its_tolerance(family: str) -> None:
    before, _, logits = ending_of(hf_model(family), TEXT)
    head = NativeModel(hf_model(family), "int8").embeddings_and_head
    assert torch.equal(head.embed(PART), hf_model(family).get_input_embeddings()(PART))
    found = head.logits(before)
    assert not torch.equal(found, logits)
    assert (found - logits).norm() < 0.1 * logits.norm()
    assert torch.equal(head.logits(before, PART), found[:, PART])


@pytest.mark.parametrize(
    "products", ["float32", "bfloat16", pytest.param("int8", marks=needs_int8)]
)
def test_the_native_head_gives_the_bits_of_a_pass(products: Any) -> None:
    model = NativeModel(hf_model("stablelm"), products)
    output = model.start().extend(TEXT, hidden=(4,))
    found = model.embeddings_and_head.logits(output.states(4), normed=True)
    assert torch.equal(found, output.logits)
    assert torch.equal(
        model.embeddings_and_head.logits(output.states(4), PART, True), output.logits[:, PART]
    )
    assert torch.equal(
        model.embeddings_and_head.logits(output.states(4)[3:4], PART, True), found[3:4, PART]
    )


# Weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [*SCALED, "llama", "llama-scaled", "stablelm"])
@pytest.mark.parametrize("path", [TransformersModel, LeanModel, NativeModel])
def test_weights_are_as_loaded(path: Any, family: str, dtype: torch.dtype) -> None:
    hf: Any = copy.deepcopy(hf_model(family)).to(dtype)
    model: AnyModel = path(hf)
    embedding = hf.get_input_embeddings().weight.detach().clone()
    norm, head = hf.model.norm, hf.lm_head.weight.detach().clone()
    gone = path is NativeModel
    if gone:  # then nobody has the module any more
        norm = copy.deepcopy(norm)
        del hf
        gc.collect()
        assert model.embeddings_and_head.head() is None  # type: ignore[attr-defined]
    weights = model.embeddings_and_head.weights()
    assert same(weights.embedding, embedding)
    assert weights.norm is not None
    assert same(weights.norm, norm.weight)
    assert same(weights.head, head)
    assert weights.head_bias is None
    held = np.dtype(np.float32) if path is NativeModel else dtype
    assert {each.dtype for each in (weights.embedding, weights.norm, weights.head)} == {held}
    assert (weights.head is weights.embedding or path is not NativeModel) or (
        family != "llama-scaled"
    )


@needs_int8
def test_a_native_head_in_int8_is_as_loaded_while_the_module_is_there_and_rounded_afterwards() -> (
    None
):
    hf: Any = copy.deepcopy(hf_model("llama"))
    head = hf.lm_head.weight.detach().clone()
    model = NativeModel(hf, "int8")
    assert same(model.embeddings_and_head.weights().head, head)
    del hf
    gc.collect()
    rounded = torch.from_numpy(model.embeddings_and_head.weights().head)
    assert not torch.equal(rounded, head)
    steps = head.abs().max(dim=1, keepdim=True).values / 127  # 32 weights share a scale
    assert ((rounded - head).abs() <= 0.51 * steps).all()


@needs_int8
def test_a_native_head_in_four_bits_is_what_it_was() -> None:
    hf: Any = copy.deepcopy(hf_model("llama"))
    head = torch.randint(16, (VOCAB, 32), generator=torch.Generator().manual_seed(0)) / 8 - 1
    head[:, :2] = torch.tensor([-1.0, 0.875])  # the whole range in every row
    hf.lm_head.weight.data = head.clone()
    model = NativeModel(hf, "int8")
    assert model.weights.lm_head.format == "Q4_1"
    del hf
    gc.collect()
    assert (torch.from_numpy(model.embeddings_and_head.weights().head) - head).abs().max() < 1e-3


def same(weights: Any, wanted: Tensor) -> bool:
    """True if arrays or tensors hold these numbers, in whatever type."""
    return torch.equal(as_tensor(weights).float(), wanted.float())


# Refusals


@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/native"])
def test_tokens_that_are_none_are_refused(family: str) -> None:
    head = model_of(family).embeddings_and_head
    for wrong in ([-1], [3, VOCAB]):
        tokens = torch.tensor(wrong)
        with pytest.raises(ValueError, match=f"0 to {VOCAB - 1}.*got .*{max(wrong[0], wrong[-1])}"):
            head.embed(tokens)
        with pytest.raises(ValueError, match=f"0 to {VOCAB - 1}"):
            head.logits(torch.zeros(1, 32), tokens)


def test_a_model_without_the_ability_refuses_all_acts_by_name() -> None:
    table = TableModel(torch.eye(4))
    assert table.hidden_size == 0
    for act in (
        lambda: table.embeddings_and_head.embed(torch.tensor([1])),
        lambda: table.embeddings_and_head.logits(torch.zeros(1, 4)),
        lambda: table.embeddings_and_head.weights(),
    ):
        with pytest.raises(
            ValueError, match=r"needs a model .*'embeddings_and_head'.* TableModel does not"
        ):
            act()


def test_a_model_that_projects_its_hidden_states_lacks_the_ability() -> None:
    config = OPTConfig(**{**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 16, "init_std": 0.3})  # type: ignore[arg-type]
    config.init_std = 0.3
    projecting = AutoModelForCausalLM.from_config(config).eval()
    assert final_norm(projecting) is None
    model = TransformersModel(projecting)
    assert "embeddings_and_head" not in model.abilities
    with pytest.raises(ValueError, match=r"'embeddings_and_head'.* TransformersModel does not"):
        model.embeddings_and_head.embed(torch.tensor([1]))


@pytest.mark.model
@pytest.mark.parametrize(
    "products", ["float32", "bfloat16", pytest.param("int8", marks=needs_int8)]
)
def test_ends_of_the_real_model(products: Any) -> None:
    from draftwood.loading.hub import load_pretrained

    loaded = load_pretrained("smollm2-135m", dtype="float32")
    general = TransformersModel(loaded.model)
    states = general.start().extend(some_tokens(40, seed=3), hidden=(general.layers - 1,))
    hidden = states.states(general.layers - 1)
    part = torch.randint(general.vocab_size, (1000,), generator=torch.Generator().manual_seed(0))
    exact, model = general.embeddings_and_head.logits(hidden), NativeModel(loaded.model, products)
    found = model.embeddings_and_head.logits(hidden)
    tolerance = {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.1}[products]
    assert (found - exact).norm() < tolerance * exact.norm()
    assert torch.equal(model.embeddings_and_head.logits(hidden, part), found[:, part])
    assert torch.equal(
        model.embeddings_and_head.embed(part), general.embeddings_and_head.embed(part)
    )
    assert same(
        model.embeddings_and_head.weights().head, general.embeddings_and_head.weights().head
    )
