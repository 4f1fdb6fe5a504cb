"""Passes in which chunks of prompts run beside trees."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from test_attention import TREE, hf_model, some
from torch import Tensor

from draftwood.models.model import (
    ForwardInput,
    Keep,
    Layers,
    ModelInput,
    ModelOutput,
    PromptInput,
    kept,
)
from draftwood.models.native import NativeModel, has_int8
from draftwood.native import library
from draftwood.testing.models import TableModel
from draftwood.tree import DraftTree
from families import assert_close, model_of, some_tokens, some_tree

needs_native = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
FORMATS = {
    "float32": {},
    "bfloat16": {"products": "bfloat16", "dtype": "bfloat16"},
    "int8": {"products": "int8"},
    "int4": {"products": "int4"},
    "int8 cache": {"products": "int8", "dtype": "bfloat16", "cache": "int8"},
}
OF_FORMATS = [
    pytest.param(name, marks=[needs_native, *([needs_int8] if "int" in name else [])])
    for name in FORMATS
]
CHUNKS = (1, 7, 32, 512)
KEEPS: tuple[Keep, ...] = ("all", "last", "none")


@cache
def native(name: str) -> NativeModel:
    options: dict[str, Any] = FORMATS[name]
    return NativeModel(hf_model(64, window=40), **options)


class Requests:
    """Prompts of several lengths to which a chunk is to be added, and texts with trees."""

    def __init__(self, model: Any, chunk: int, keep: Keep) -> None:
        self.model = model
        sessions = [model.start() for _ in range(4)]
        for number, session in enumerate(sessions):
            session.extend(some(30 + 70 * number, seed=number), keep="none")
        self.inputs: list[ModelInput] = [
            ForwardInput(sessions[0], TREE, hidden=(1,)),
            PromptInput(sessions[1], some(chunk, seed=9), keep, (0, 2)),
            ForwardInput(sessions[2], DraftTree.chain([3, 5]), keep="last"),
            PromptInput(sessions[3], some(chunk, seed=8), "last"),
        ]

    def together(self) -> list[ModelOutput]:
        return self.model.forward(self.inputs)

    def apart(self) -> list[ModelOutput]:
        return [self.model.forward([each])[0] for each in self.inputs]

    def next_logits(self) -> list[Tensor]:
        """Behind all that was written."""
        return [each.session.extend([7]).logits for each in self.inputs]

    def lengths(self) -> list[int]:
        return [each.session.length for each in self.inputs]


def assert_same(one: list[ModelOutput], other: list[ModelOutput]) -> None:
    for here, there in zip(one, other, strict=True):
        assert torch.equal(here.logits, there.logits)
        assert here.hidden.keys() == there.hidden.keys()
        assert all(torch.equal(here.states(layer), there.states(layer)) for layer in here.hidden)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", OF_FORMATS)
def test_a_mixed_pass_has_the_bits_of_passes_apart(name: str, chunk: int, keep: Keep) -> None:
    one, other = (Requests(native(name), chunk, keep) for _ in range(2))
    found = one.together()
    assert_same(found, other.apart())
    rows = {"all": chunk, "last": 1, "none": 0}[keep]
    assert [len(output.logits) for output in found] == [len(TREE), rows, 1, 1]
    assert one.lengths() == other.lengths() == [30, 100 + chunk, 170, 240 + chunk]
    for here, there in zip(one.next_logits(), other.next_logits(), strict=True):
        assert torch.equal(here, there)


@needs_native
def test_a_row_that_is_not_its_own_would_be_noticed() -> None:
    """Negative control: the same comparison with one token that is another."""
    one, other = (Requests(native("float32"), 7, "all") for _ in range(2))
    chunk = other.inputs[1]
    assert isinstance(chunk, PromptInput)
    other.inputs[1] = PromptInput(chunk.session, [*chunk.tokens[:-1], 1], "all", (0, 2))
    with pytest.raises(AssertionError):
        assert_same(one.together(), other.apart())


@needs_native
def test_logits_that_nobody_wants_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = native("float32")
    rows = []
    empty = np.empty

    def seen(shape: Any, *types: Any) -> np.ndarray:
        rows.append(shape)
        return empty(shape, *types)

    monkeypatch.setattr("draftwood.models.native.model.np.empty", seen)
    model.start().extend(some(20), keep="none")
    assert (0, model.vocab_size) in rows


OTHERS: dict[str, Callable[[], Any]] = {
    **{
        path: lambda path=path: model_of(path)
        for path in ("llama", "mistral-window", "llama/lean", "llama/recorded", "llama/native")
    },
    "table": lambda: TableModel(torch.randn(40, 40, generator=torch.Generator().manual_seed(0))),
}


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("keep", KEEPS)
def test_every_path_takes_chunks_beside_trees(path: str, keep: Keep) -> None:
    one, other = OTHERS[path](), OTHERS[path]()
    tree, text = some_tree(9, seed=4), some_tokens(6, seed=2)
    sessions = [[model.start() for _ in range(3)] for model in (one, other)]
    for each in sessions:
        for number, session in enumerate(each):
            session.extend(some_tokens(3 + 4 * number, seed=number))
    outputs = one.forward(
        [
            PromptInput(sessions[0][0], text, keep),
            ForwardInput(sessions[0][1], tree, keep=keep),
            PromptInput(sessions[0][2], text[:2], keep),
        ]
    )
    apart = [
        sessions[1][0].extend(text).logits,
        sessions[1][1].forward(tree).logits,
        sessions[1][2].extend(text[:2]).logits,
    ]
    for output, logits in zip(outputs, apart, strict=True):
        assert output.logits.shape == kept(logits, keep).shape
        if keep != "none":
            assert_close(output.logits, kept(logits, keep))
    assert [each.length for each in sessions[0]] == [each.length for each in sessions[1]]
    for here, there in zip(*sessions, strict=True):
        assert_close(here.extend([7]).logits, there.extend([7]).logits)


@pytest.mark.parametrize("path", ["llama", "llama/lean", "llama/native"])
def test_a_pass_that_fails_leaves_every_sequence_as_it_was(path: str) -> None:
    model, alone = model_of(path), model_of(path).start()
    sessions, tree = [model.start() for _ in range(2)], DraftTree.chain([1, 2, 3])
    for session in (*sessions, alone):
        session.extend(some_tokens(9, seed=1))
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        model.forward([PromptInput(sessions[0], [4, 5]), PromptInput(sessions[1], [4, 4000])])
    assert [session.length for session in sessions] == [9, 9]
    for session in sessions:
        assert_close(session.forward(tree).logits, alone.forward(tree).logits)


@needs_native
def test_nodes_that_ran_stay_where_a_native_pass_is_refused() -> None:
    model, tree = model_of("llama/native"), DraftTree.chain([1, 2, 3])
    session, alone = model.start(), model.start()
    for each in (session, alone):
        each.extend(some_tokens(9, seed=1))
        each.forward(tree)
    with pytest.raises(ValueError, match="vocabulary"):
        model.forward([PromptInput(session, [4, 4000])])
    for each in (session, alone):
        each.commit([0, 1, 2])
    assert_close(session.extend([7]).logits, alone.extend([7]).logits)


def test_nodes_that_a_broken_pass_may_have_written_over_must_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tree = model_of("llama/lean"), DraftTree.chain([1, 2, 3])
    session = model.start()
    session.extend(some_tokens(9, seed=1))
    session.forward(tree)

    def broken(*_: object) -> list[ModelOutput]:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(model, "compute", broken)
    with pytest.raises(RuntimeError, match="gone"):
        session.forward(tree)
    with pytest.raises(ValueError, match="only 0 nodes were run"):
        session.commit([0])
    assert session.length == 9


def test_a_session_takes_part_once() -> None:
    model = model_of("llama")
    session = model.start()
    with pytest.raises(ValueError, match="takes part in a pass once"):
        model.forward([PromptInput(session, [1]), ForwardInput(session, DraftTree.chain([1]))])
    assert session.length == 0


def test_chunks_and_other_layers_are_passes_apart() -> None:
    model = model_of("llama/native")
    layers = Layers(without_attention=frozenset({1}), without_mlp=frozenset({1}))
    sessions, tree = [model.start() for _ in range(2)], some_tree(5, seed=0)
    outputs = model.forward(
        [PromptInput(sessions[0], [1, 2, 3], "all"), ForwardInput(sessions[1], tree, layers=layers)]
    )
    assert torch.equal(outputs[0].logits, model.start().extend([1, 2, 3]).logits)
    alone = model.forward([ForwardInput(model.start(), tree, layers=layers)])[0]
    assert torch.equal(outputs[1].logits, alone.logits)
