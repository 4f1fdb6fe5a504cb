"""Models of Transformers whose linear layers run in the library say what they said before: in
trees, batches and texts.
"""

import copy
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

import families
import hybrids
from draftwood import methods
from draftwood.engine import Options, generate
from draftwood.methods import lossless_names
from draftwood.models.model import ForwardInput
from draftwood.native.library import available
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads
from draftwood_torch.general import general_model
from draftwood_torch.loading.packed_models import linear_modules, pack, read_blocks
from draftwood_torch.models.packed_linear import (
    FEW_ROWS,
    PackedEmbedding,
    PackedLinear,
    PackedModule,
)
from draftwood_torch.models.transformers import TransformersModel
from families import GROUPED, assert_close, deepest_path, random_model, some_tokens, some_tree

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
PRODUCTS = ("int8", "int4", "bfloat16", "float32")
GENERAL = ("gpt2", "opt", "gpt-neox", "phi", "deepseek-v3")
PROMPT = some_tokens(20, seed=1)
SOME = ("gpt2", "lfm2", "qwen3.5")
METHODS = [name for name in lossless_names() if not {"head", "layers"} & methods.spec(name).needs]


def own(family: str) -> PreTrainedModel:
    return (hybrids if family in hybrids.HYBRIDS else families).hf_model(family)


@cache
def packed(family: str, products: str) -> TransformersModel:
    model = copy.deepcopy(own(family))
    pack(model, products)
    return general_model(model)


def some_rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_row_has_the_same_product_whatever_is_beside_it(products: str) -> None:
    weight, bias = some_rows(70, 96), some_rows(70)
    layer = PackedLinear(Matrix.pack(weight, bias, products))
    rows = some_rows(3, 13, 96)
    together = layer(rows)
    assert together.shape == (3, 13, 70)
    alone = torch.stack([layer(row[None])[0] for row in rows.flatten(0, 1)])
    assert torch.equal(together.flatten(0, 1), alone)
    exact = nn.functional.linear(rows, weight, bias)
    off = {"int8": 0.02, "int4": 0.3, "bfloat16": 0.02, "float32": 1e-6}[products]
    assert float((together - exact).norm() / exact.norm()) < off
    assert layer(rows.bfloat16()).dtype == torch.bfloat16


def test_embeddings_give_the_rows_that_a_head_multiplies() -> None:
    matrix = Matrix.pack(some_rows(40, 32), None, "int8")
    tokens = torch.tensor([[3, 39, 3], [0, 7, 8]])
    found = PackedEmbedding(matrix)(tokens)
    assert torch.equal(found, PackedLinear(matrix).weight[tokens])


@pytest.mark.parametrize("token", [-1, 40, 1000])
def test_embeddings_have_no_rows_of_other_tokens(token: int) -> None:
    embedding = PackedEmbedding(Matrix.pack(some_rows(40, 32), None, "int8"))
    with pytest.raises(IndexError, match=f"has outputs 0 to 39, asked for .*{token}"):
        embedding(torch.tensor([[3, token]]))


def test_weights_are_decoded_by_what_computes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rows = PackedLinear(Matrix.pack(some_rows(40, 32), None, "int8")), some_rows(3, 32)
    exact, decodes = layer.floats(), count_decodes(monkeypatch)
    weight = layer.weight
    assert (weight.dtype, weight.device.type, weight.shape) == (torch.float32, "cpu", (40, 32))
    assert not decodes
    found = nn.functional.linear(rows, weight)
    assert torch.equal(found, rows @ exact.T)
    assert len(decodes) == 1
    with pytest.raises(RuntimeError, match="numpy"):  # rather than numbers of nobody
        weight.numpy()


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Shapes of the matrices that are decoded from now on."""
    decodes, floats = list[tuple[int, int]](), PackedModule.floats

    def counted(module: PackedModule) -> torch.Tensor:
        decodes.append(module.matrix.shape)
        return floats(module)

    monkeypatch.setattr(PackedModule, "floats", counted)
    return decodes


@pytest.mark.parametrize("family", [*GENERAL, *hybrids.HYBRIDS])
def test_no_pass_decodes_a_matrix(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, decodes = packed(family, "float32").start(), count_decodes(monkeypatch)
    session.extend(PROMPT)
    session.forward(some_tree(3, seed=1))
    session.close()
    assert not decodes


@pytest.mark.parametrize("is_read", [False, True], ids=["packed", "read"])
def test_a_model_without_loose_weights_knows_its_type_and_device(
    is_read: bool, tmp_path: Path
) -> None:
    model: Any = random_model("OlmoConfig", {**GROUPED})  # its norms have no weights
    exact = model(torch.tensor([PROMPT])).logits[0, -1]
    if is_read:
        model.config.save_pretrained(tmp_path)
        weights = {name: each.numpy() for name, each in model.state_dict().items()}
        model = read_blocks(tmp_path, weights, "float32", None)
    else:
        pack(model, "float32")
    assert not sum(each.numel() for each in model.parameters())
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")
    session = general_model(model).start()
    assert_close(session.extend(PROMPT).logits[-1], exact)
    session.close()


@pytest.mark.parametrize("family", [*GENERAL, *hybrids.HYBRIDS])
def test_nodes_of_trees_are_those_of_the_model_itself(family: str) -> None:
    model, kind = packed(family, "float32"), hybrids if family in hybrids.HYBRIDS else families
    left = [each for each in model.hf_model.modules() if type(each) in (nn.Linear, Conv1D)]
    assert len(left) < 0.2 * len(linear_modules(own(family)))  # what chooses experts
    session, tree = model.start(), some_tree(9, seed=4)
    session.extend(PROMPT)
    given = (PROMPT, [], tree) if kind is hybrids else (PROMPT, tree)
    at_nodes: Callable[..., torch.Tensor] = kind.at_nodes
    with torch.no_grad():
        assert_close(session.forward(tree).logits, at_nodes(own(family), *given))


@pytest.mark.parametrize("family", SOME)
def test_packed_models_run_sequences_together_as_each_alone(family: str) -> None:
    model, lengths = packed(family, "float32"), (3, 20, 1)
    shared, alone = ([model.start() for _ in lengths] for _ in range(2))
    for sessions in (shared, alone):
        for number, (session, length) in enumerate(zip(sessions, lengths, strict=True)):
            session.extend(some_tokens(length, seed=number))
    trees = [some_tree(4 + 3 * number, seed=30 + number) for number in range(len(lengths))]
    inputs = [ForwardInput(*pair) for pair in zip(shared, trees, strict=True)]
    for session, tree, output in zip(alone, trees, model.forward(inputs), strict=True):
        assert_close(output.logits, session.forward(tree).logits)
    for session in (*shared, *alone):
        session.close()


def text(method: str, target: Any) -> list[int]:
    draft = target if "draft-model" in methods.spec(method).needs else None
    chosen = methods.build(method, target, draft, curve=lambda nodes: 1.0 + 0.02 * nodes)
    steps = generate(target, chosen.drafter, chosen.verifier, PROMPT, Options(max_new_tokens=24))
    return [token for step in steps for token in step.tokens]


@cache
def plain(family: str) -> list[int]:
    return text("plain", packed(family, "int8"))


@pytest.mark.parametrize("method", METHODS)
def test_greedy_texts_of_packed_models_are_those_of_plain_decoding(method: str) -> None:
    for family in SOME:
        assert text(method, packed(family, "int8")) == plain(family)


@pytest.mark.parametrize("products", ["int8", "int4"])
@pytest.mark.parametrize("family", SOME)
def test_few_bits_are_close(family: str, products: str) -> None:
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        exact = own(family)(tokens).logits
        found = packed(family, products).hf_model(tokens).logits
    off = float((found - exact).norm() / exact.norm())
    assert 1e-4 < off < {"int8": 0.2, "int4": 0.8}[products]


def test_modules_that_share_weights_share_matrices() -> None:
    tied = packed("gpt2", "int8").hf_model
    embedding: Any = tied.get_input_embeddings()
    head: Any = tied.get_output_embeddings()
    assert embedding.matrix is head.matrix
    weights = {id(each.weight) for each in linear_modules(own("zamba2")).values()}
    shared = packed("zamba2", "int8").hf_model.modules()
    matrices = {id(each.matrix) for each in shared if isinstance(each, PackedLinear)}
    assert len(matrices) == len(weights) < len(linear_modules(own("zamba2")))


def test_an_embedding_that_is_no_head_keeps_its_numbers() -> None:
    model = packed("gpt-neox", "int4").hf_model
    found: Any = model.get_input_embeddings()
    before: Any = own("gpt-neox").get_input_embeddings()
    assert torch.equal(found.weight, before.weight)
    assert isinstance(model.get_output_embeddings(), PackedLinear)


def test_some_tokens_have_the_logits_that_they_have_among_all() -> None:
    model, part = packed("gpt2", "int8"), np.array([3, 9, 4])
    ends, rows = model.embeddings_and_head, some_rows(2, model.hidden_size)
    whole = ends.logits(rows, normed=True)
    assert torch.equal(ends.logits(rows, part, normed=True), whole[:, part])
    weights = ends.weights()
    assert weights.head is weights.embedding  # decoded once
    torch.testing.assert_close(rows @ weights.head.T, whole, atol=0.05 * whole.abs().max(), rtol=0)
    assert torch.equal(ends.embed(part), weights.embedding[part])


@pytest.mark.parametrize(("rows", "alone"), [(1, True), (FEW_ROWS, True), (FEW_ROWS + 1, False)])
def test_passes_of_few_rows_leave_the_cores_to_the_library(rows: int, alone: bool) -> None:
    model, seen = packed("gpt2", "int8"), list[tuple[int, int]]()
    layer = next(each for each in model.hf_model.modules() if isinstance(each, PackedLinear))

    def look(*given: object) -> None:
        seen.append((torch.get_num_threads(), threads()))
        if rows > 1:
            raise KeyboardInterrupt

    session, handle = model.start(), layer.register_forward_pre_hook(look)
    before = torch.get_num_threads(), threads()
    with nullcontext() if rows == 1 else pytest.raises(KeyboardInterrupt):
        session.extend(some_tokens(rows))
    handle.remove()
    assert seen == [(1 if alone else before[0], before[1])]
    assert (torch.get_num_threads(), threads()) == before
    session.close()


def numbers() -> tuple[int, int, int]:
    """Threads of PyTorch, of its MKL, if it has one, and of the library."""
    own = torch.get_num_threads()
    of_mkl = re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return own, int(of_mkl[1]) if of_mkl else own, threads()


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_threads_born_in_a_pass_have_as_many_as_others() -> None:
    model, usual = packed("gpt2", "int8"), numbers()
    layer = next(each for each in model.hf_model.modules() if isinstance(each, PackedLinear))
    seen = list[tuple[int, int, int]]()

    def run() -> None:
        session = model.start()
        session.extend([1])
        session.close()

    with ThreadPoolExecutor(1) as born:

        def look(*given: object) -> None:
            seen.extend([numbers(), born.submit(numbers).result()])

        handle = layer.register_forward_pre_hook(look)
        run()
        handle.remove()
        assert seen == [(1, 1, usual[-1]), usual]
        assert numbers() == born.submit(numbers).result() == usual
        born.submit(run).result()
        assert born.submit(numbers).result() == usual
    with ThreadPoolExecutor(1) as later:
        assert later.submit(numbers).result() == usual


@pytest.mark.parametrize("family", SOME)
def test_what_is_not_packed_is_in_float32(family: str) -> None:
    model = copy.deepcopy(own(family)).bfloat16()
    pack(model, "int8")
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    run = general_model(model)
    session, tree = run.start(), some_tree(5, seed=2)
    session.extend(PROMPT)
    logits = session.forward(tree).logits
    session.commit(deepest_path(tree))
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
