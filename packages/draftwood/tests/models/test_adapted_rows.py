"""Adapted rows: PyTorch's logits of base + up @ down, and all other rows as they were."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from test_attention import hf_model, set_threads
from transformers import PreTrainedModel

from draftwood import RowsInput
from draftwood.arrays import rounded
from draftwood.models.model import ForwardInput, PromptInput, RowAdapter
from draftwood.models.native import NativeModel, has_int8
from draftwood.native import library
from draftwood.tree import DraftTree
from draftwood_torch.models.transformers import TransformersModel
from written_masks import Rows, some_rows, written_out

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
VOCAB, PLACES, RANKS = 50, 3, {"query": 3, "value": 1, "output": 2, "gate": 4, "up": 2, "down": 5}
FORMATS: dict[str, dict[str, Any]] = {"float32": {}, "int8": {"products": "int8"}}
OF_FORMATS = [pytest.param(name, marks=[needs_int8] if name == "int8" else []) for name in FORMATS]
MODULES = {
    **dict(zip(("query", "key", "value", "output"), "qkvo", strict=True)),
    **{name: name for name in ("gate", "up", "down")},
}
SIZES = ((0, 4), (3, 9), (40, 17), (300, 5))  # of the text, and rows


@cache
def native(name: str) -> NativeModel:
    return NativeModel(hf_model(64, None), **FORMATS[name])


@cache
def factors() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Draw factors of both layers that bfloat16 holds; the second has no addition to its keys."""
    draw, found = np.random.default_rng(1), {}
    layers = native("float32").weights.structure.layers
    for index in range(2):
        for name, rank in ({**RANKS, "key": 2} if index == 0 else RANKS).items():
            matrix = getattr(layers[index], name)
            shapes = (rank, matrix.inputs), (matrix.outputs, rank)
            found[f"{index}.{name}"] = tuple(
                rounded(draw.normal(size=shape).astype(np.float32) * 0.3, "bfloat16")
                for shape in shapes
            )
    return found


@cache
def vectors() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(PLACES, 64)).astype(np.float32)


@cache
def adapter(name: str) -> RowAdapter:
    return native(name).row_adapter(vectors(), factors())


def places_of(rows: Rows) -> list[int]:
    """A vector for each of about half of the rows, the last ones."""
    return [number % PLACES for number in range((len(rows.tokens) + 1) // 2)]


def run(model: NativeModel, rows: Rows, own: RowAdapter | None) -> np.ndarray:
    given = rows.begun(model.start())
    if own is not None:
        given = replace(given, adapter=own, adapted=places_of(rows))
    return model.forward([given])[0].rows


@contextmanager
def adapted(model: PreTrainedModel, rows: Rows) -> Iterator[None]:
    """Let PyTorch add to what linear layers say of the last rows."""
    handles, places = [], places_of(rows)
    for name, pair in factors().items():
        index, which = name.split(".")
        module = model.get_submodule(f"model.layers.{index}").get_submodule(
            f"mlp.{which}_proj"
            if which in ("gate", "up", "down")
            else f"self_attn.{MODULES[which]}_proj"
        )
        down, up = (torch.from_numpy(each).to(model.dtype) for each in pair)

        def add(
            module: Any, given: Any, out: torch.Tensor, down: Any = down, up: Any = up
        ) -> torch.Tensor:
            out = out.clone()
            out[:, -len(places) :] += given[0][:, -len(places) :] @ down.T @ up.T
            return out

        handles.append(module.register_forward_hook(add))

    def embed(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[0, -len(places) :] = torch.from_numpy(vectors()[places]).to(out.dtype)
        return out

    handles.append(model.get_submodule("model.embed_tokens").register_forward_hook(embed))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_adapted_rows_are_those_of_a_model_with_the_products_added(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_threads(monkeypatch, threads)
    wide = hf_model(64, None).double()
    for seed, size in enumerate(SIZES):
        rows = some_rows(*size, VOCAB, seed)
        with adapted(wide, rows):
            expected = written_out(wide, rows).numpy()
        found = run(native("float32"), rows, adapter("float32"))
        assert np.abs(found - expected).max() < 1e-4 * expected.std()
        plain = written_out(wide, rows).numpy()
        assert np.abs(plain - expected)[-1].max() > 0.1 * expected.std()


@pytest.mark.parametrize("name", OF_FORMATS)
def test_rows_that_see_no_adapted_ones_keep_their_bits(name: str) -> None:
    model, tree = native(name), DraftTree.chain([3, 8, 1, 9])
    for seed, size in enumerate(SIZES):
        rows = some_rows(*size, VOCAB, seed)
        first = len(rows.tokens) - len(places_of(rows))
        rows.sees[:first, len(rows.text) + first :] = False
        alone, beside = run(model, rows, None), run(model, rows, adapter(name))
        assert np.array_equal(alone[:first], beside[:first])
        assert not np.array_equal(alone[-1], beside[-1])
        # and so do a tree's nodes, beside which they are run
        trees = []
        for given in ([], [replace(rows.begun(model.start()), adapter=adapter(name), adapted=[0])]):
            session = model.start()
            session.extend([4, 2], keep="none")
            trees.append(model.forward([ForwardInput(session, tree), *given])[0].rows)
        assert np.array_equal(*trees)


@pytest.mark.parametrize("name", OF_FORMATS)
def test_rows_of_a_tree_keep_its_bits_beside_adapted_rows_below_its_nodes(name: str) -> None:
    """As a drafter attaches them: two below each node, each seeing what the node sees."""
    model, tree = native(name), DraftTree.of([3, 8, 1, 9], [-1, 0, 0, 1])
    text, count = [5, 6, 7], len(tree)
    session = model.start()
    session.extend(text, keep="none")
    alone = model.forward([ForwardInput(session, tree)])[0].rows
    below = np.repeat(np.arange(count), 2)
    sees = np.zeros((3 * count, 3 * count), bool)
    sees[:count, :count], sees[count:, :count] = tree.ancestors, tree.ancestors[below]
    sees[count:, count:] = np.kron(np.eye(count), [[1, 0], [1, 1]]).astype(bool)
    positions = len(text) + np.concatenate([tree.depths, tree.depths[below] + [1, 2] * count])
    given = RowsInput(session, [*tree.token_list, *[0] * 2 * count], positions, sees)
    given = replace(given, adapter=adapter(name), adapted=[0, 1] * count)
    both = model.forward([given])[0].rows
    assert np.array_equal(both[:count], alone)
    # the text goes on behind a path as if nothing had been attached
    session.commit([0, 1, 3])
    other = model.start()
    other.extend([*text, 3, 8, 9], keep="none")
    after = [model.forward([PromptInput(each, [2])])[0].rows for each in (session, other)]
    assert np.array_equal(*after)


def test_an_adapted_row_is_the_same_in_any_company() -> None:
    model, rows = native("float32"), some_rows(20, 6, VOCAB, 1)
    rows.sees[:, 20:] = np.eye(6, dtype=bool)
    all_rows = run(model, rows, adapter("float32"))
    for row in (3, 5):
        session = model.start()
        session.extend(rows.text, keep="none")
        sees = rows.sees[row : row + 1, [*range(20), 20 + row]]
        place = places_of(rows)[row - 3]
        alone = RowsInput(session, [0], rows.positions[row : row + 1], sees)
        alone = replace(alone, adapter=adapter("float32"), adapted=[place])
        assert np.array_equal(model.forward([alone])[0].rows[0], all_rows[row])


def test_what_an_adapter_cannot_act_on_is_refused() -> None:
    model, own = native("float32"), adapter("float32")

    def given(other: Any, adapted: Sequence[int], using: RowAdapter | None = own) -> RowsInput:
        return RowsInput(
            other.start(), [1, 2], [0, 1], np.eye(2, dtype=bool), "all", (), using, adapted
        )

    for bad, message in (
        (given(model, [PLACES]), "the adapter has vectors 0 to 2"),
        (given(model, [0, 0, 0]), "3 of 2 rows cannot be adapted"),
        (given(model, [0], None), "rows are adapted by an adapter"),
        (given(NativeModel(hf_model(64, None)), [0]), "made for another model"),
        (given(TransformersModel(hf_model(64, None)), [0]), "adapted_rows"),
    ):
        with pytest.raises(ValueError, match=message):
            bad.session.model.forward([bad])
    down, up = factors()["0.gate"]
    for name, pair in {"0.gates": (down, up), "2.gate": (down, up), "0.gate": (up, down)}.items():
        with pytest.raises(ValueError, match=r"no matrix|takes factors"):
            model.row_adapter(vectors(), {name: pair})
    with pytest.raises(ValueError, match="vectors of this model are"):
        model.row_adapter(vectors()[:, :5], {})
