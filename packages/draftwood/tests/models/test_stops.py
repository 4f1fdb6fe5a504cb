"""Passes that stop between two layers and go on later, and passes that read part of a prefix."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.models.model import ForwardInput, Layers, ModelSession
from draftwood.models.native import NativeModel, has_int8
from draftwood.tree import DraftTree
from draftwood_torch.tensors import as_tensor
from families import (
    SOME,
    TOLERANCE,
    assert_close,
    at_nodes,
    hf_model,
    model_of,
    some_tokens,
    some_tree,
    through,
)

TYPES = ["float32", "bfloat16", "int8", "int4"]
FAMILIES = [
    *SOME,
    "gemma2",
    "gpt2",
    "gpt-oss",
    "granite-swa",
    "llama/lean",
    "mixtral/lean",
    "gemma3/recorded",
]
FAMILIES += [f"{family}/native" for family in ("gemma2", "cohere2", "granite", "gpt-oss")]


def stop_and_go(session: ModelSession, tree: DraftTree, *stops: int) -> Tensor:
    """Logits of a tree that stops before these layers."""
    start = 0
    for stop in stops:
        given = through(session, tree, Layers(start, stop))
        assert list(given.hidden) == [stop]
        assert not given.logits.numel()
        start = stop
    return through(session, tree, Layers(start)).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_stopped_nodes_go_on_to_the_models_own_logits(family: str) -> None:
    session, text, tree = model_of(family).start(), some_tokens(12, seed=1), some_tree(10, seed=2)
    session.extend(text)
    assert_close(stop_and_go(session, tree, 1, 3), at_nodes(hf_model(family), text, tree))
    session.commit([0])  # they ran through all layers


def test_layers_that_read_what_earlier_ones_leave_run_together() -> None:
    assert not {"partial", "resume"} & model_of("gemma4-inputs").abilities


def native(products: str, cache: Any = None) -> NativeModel:
    if products in ("int8", "int4") and not has_int8(torch.device("cpu")):
        pytest.skip("this CPU has no fast 8-bit products")
    return NativeModel(hf_model("llama"), products, cache=cache)  # type: ignore[arg-type]


@pytest.mark.parametrize("products", TYPES)
@pytest.mark.parametrize("cache", [None, "int8"])
def test_native_nodes_go_on_bit_for_bit(products: str, cache: str | None) -> None:
    session, tree = native(products, cache).start(), some_tree(9, seed=3)
    session.extend(some_tokens(40, seed=4))
    whole = through(session, tree, Layers())
    for stops in ((1,), (2,), (1, 2, 3)):
        assert torch.equal(stop_and_go(session, tree, *stops), whole.logits)
    off_by_one = through(session, tree, Layers(stop=2))
    assert off_by_one.states(2).dtype == torch.float32


@pytest.mark.parametrize("products", TYPES)
def test_going_on_one_layer_off_would_be_noticed(products: str) -> None:
    """Negative control: the same states, taken for those of the layer before or behind."""
    session: Any = native(products).start()
    tree = some_tree(9, seed=3)
    session.extend(some_tokens(40, seed=4))
    whole = through(session, tree, Layers())
    for off in (-1, 1):
        through(session, tree, Layers(stop=2))
        session._layers = Layers(stop=2 + off)
        logits = through(session, tree, Layers(start=2 + off)).logits
        assert (logits - whole.logits).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("products", TYPES)
def test_a_pass_through_all_layers_goes_on_where_nodes_stopped(products: str) -> None:
    model, tree = native(products), some_tree(12, seed=5)
    session: Any = model.start()
    session.extend(some_tokens(20, seed=6))
    whole = session.forward(tree, hidden=(2, 4))
    rows = []
    compute = model.compute

    def watched(parts: Any, hidden: Any) -> Any:
        rows.extend((part.layers, part.place.count) for part in parts)
        return compute(parts, hidden)

    model.compute = watched  # type: ignore[method-assign]
    for first, end in ((0, 1), (1, 4), (4, 8)):  # as a tree grows
        through(session, tree.keep(range(end)), Layers(stop=2), first)
    given = session.forward(tree, hidden=(2, 4))
    assert rows[3:] == [(Layers(stop=2), 4), (Layers(start=2), 12)]
    assert torch.equal(given.logits, whole.logits)
    assert all(torch.equal(given.states(layer), whole.states(layer)) for layer in (2, 4))
    session.commit([0])


@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/recorded", "llama/native"])
def test_another_tree_begins_from_the_beginning(family: str) -> None:
    session, text = model_of(family).start(), some_tokens(12, seed=1)
    session.extend(text)
    tree, other = some_tree(6, seed=2), some_tree(6, seed=7)
    for layers in (Layers(stop=2), Layers(stop=2, without_mlp=frozenset({1}))):
        if family != "llama" or not layers.without_mlp:
            through(session, tree, layers)
        assert_close(session.forward(other).logits, at_nodes(hf_model(family), text, other))
    through(session, tree, Layers(stop=2))
    fewer = tree.keep(range(4))
    assert_close(session.forward(fewer).logits, at_nodes(hf_model(family), text, fewer))
    through(session, tree, Layers(stop=2))
    early = session.forward(tree, hidden=(1,))  # which stopped nodes have no more
    assert_close(early.logits, at_nodes(hf_model(family), text, tree))


@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/native"])
def test_sequences_that_stopped_at_layers_of_their_own_share_a_pass(family: str) -> None:
    model, given, expected = model_of(family), [], []
    for number, stop in enumerate((1, 3, None, 3)):
        session, text = model.start(), some_tokens(5 + 4 * number, seed=number)
        tree = some_tree(4 + number, seed=number)
        session.extend(text)
        if stop is not None:
            through(session, tree.keep(range(3)), Layers(stop=stop))
        given.append(ForwardInput(session, tree, hidden=(3,)))
        expected.append(at_nodes(hf_model(family), text, tree))
    for output, logits in zip(model.forward(given), expected, strict=True):
        assert_close(output.logits, logits)
        assert len(output.states(3)) == len(logits)


def test_nodes_that_did_not_stop_there_are_refused() -> None:
    session, tree = model_of("llama/native").start(), some_tree(6, seed=2)
    session.extend(some_tokens(9, seed=1))
    through(session, tree.keep(range(4)), Layers(stop=2))
    for layers, nodes in ((Layers(start=2), tree), (Layers(start=1), tree.keep(range(4)))):
        with pytest.raises(ValueError, match="goes on with the first nodes of a tree"):
            through(session, nodes, layers)
    with pytest.raises(ValueError, match="only 0 nodes were run through all layers"):
        session.commit([0])
    with pytest.raises(ValueError, match="has the hidden states of these"):
        through(session, tree, Layers(stop=2), hidden=(3,))
    for wrong in (Layers(stop=4), Layers(stop=0), Layers(start=4), Layers(3, 2), Layers(-1)):
        with pytest.raises(ValueError, match="starts at one of them and may stop before one of"):
            through(session, tree, wrong)


# Nodes that leave


LEFT = [0, 1, 2, 4, 7, 8]


def closed(tree: DraftTree, nodes: list[int]) -> list[int]:
    """These nodes and their ancestors."""
    return sorted({0, *nodes, *(above for node in nodes for above in tree.path_to(node))})


@pytest.mark.parametrize("products", TYPES)
@pytest.mark.parametrize("cache", [None, "int8"])
def test_native_nodes_that_are_left_have_the_bits_of_a_tree_of_their_own(
    products: str, cache: str | None
) -> None:
    session, tree = native(products, cache).start(), some_tree(40, seed=3)
    session.extend(some_tokens(50, seed=4))
    for stop, nodes in ((1, closed(tree, [5, 17, 39])), (2, [0]), (3, closed(tree, LEFT))):
        few = tree.keep(nodes)
        own = session.forward(few, hidden=(4,))
        through(session, tree, Layers(stop=stop))
        session.go_on_with(nodes)  # type: ignore[attr-defined]
        given = session.forward(few, hidden=(4,))
        assert torch.equal(given.logits, own.logits)
        assert torch.equal(given.states(4), own.states(4))
        path = [0, *few.path_to(len(few) - 1)]
        session.commit(path)
        alone = session.model.start()
        alone.extend([*some_tokens(50, seed=4), *(few.token_list[node] for node in path)])
        assert torch.equal(session.forward(tree).logits, alone.forward(tree).logits)
        session.rewind(len(path))


@pytest.mark.parametrize("family", FAMILIES)
def test_nodes_that_are_left_go_on_to_the_models_own_logits(family: str) -> None:
    session, text, tree = model_of(family).start(), some_tokens(12, seed=1), some_tree(12, seed=2)
    session.extend(text)
    through(session, tree, Layers(stop=2))
    nodes = closed(tree, [6, 9])
    session.go_on_with(nodes)  # type: ignore[attr-defined]
    few = tree.keep(nodes)
    assert_close(session.forward(few).logits, at_nodes(hf_model(family), text, few))
    session.commit([0])


def test_states_of_nodes_that_left_would_be_noticed() -> None:
    """Negative control: the cache moves, and the states stay."""
    session: Any = native("float32").start()
    tree, nodes = some_tree(9, seed=3), [0, 2]
    session.extend(some_tokens(40, seed=4))
    tree = DraftTree.of(tree.token_list[:3], [-1, 0, 0])
    own = session.forward(tree.keep(nodes)).logits
    through(session, tree, Layers(stop=2))
    states = session._stopped.states
    session.go_on_with(nodes)
    session._stopped = replace(session._stopped, states=states[: len(nodes)])
    assert (session.forward(tree.keep(nodes)).logits - own).abs().max() > 100 * TOLERANCE


def test_only_nodes_that_stopped_can_be_left() -> None:
    session: Any = model_of("llama/native").start()
    tree = DraftTree.of([1, 2, 3, 4], [-1, 0, 1, 0])
    session.extend(some_tokens(9, seed=1))
    refused = "must grow from 0"
    with pytest.raises(ValueError, match=refused):
        session.go_on_with([0])  # nothing has stopped
    session.forward(tree)
    with pytest.raises(ValueError, match=refused):
        session.go_on_with([0])
    through(session, tree, Layers(stop=2))
    for nodes in ([], [1], [0, 4], [0, 3, 1], [0, 1, 1]):
        with pytest.raises(ValueError, match=refused):
            session.go_on_with(nodes)
    with pytest.raises(ValueError, match="must come after its parent"):
        session.go_on_with([0, 2])
    session.go_on_with([0, 1, 2])  # as if nothing had been asked
    assert_close(session.forward(tree.keep([0, 1, 2])).logits, session.forward(tree).logits[:3])


# Windows


@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/recorded", "llama/native"])
def test_a_window_reads_first_and_newest_places(family: str) -> None:
    """Blocks of 32 that neither touches are not read."""
    text, other, tree = some_tokens(120, 1), some_tokens(120, 2), some_tree(8, 3)
    mixed = [*text[:32], *other[32:64], *text[64:]]
    found = []
    for tokens in (text, mixed):
        model = model_of(family)
        session, donor = model.start(), model.start()
        session.extend(text)
        donor.extend(tokens)
        pool: Any = model.pool
        # keys and values of the middle are another text's
        cached = pool.places(donor.slot, 0, 120)
        with pool.lock:
            for index, (keys, values) in enumerate(cached):
                places = pool.places(session.slot, 0, 120)[index]
                middle = [as_tensor(part).clone() for part in places]
                for own, new in zip(middle, (keys, values), strict=True):
                    own[32:64] = as_tensor(new)[32:64]
                pool.write(session.slot, index, *(part.transpose(0, 1) for part in middle), 120)
        found.append(
            [
                through(session, tree, Layers(window=window)).logits
                for window in ((4, 40), (32, 56), (4, 100))
            ]
        )
    same, same_too, other_text = (
        float((one - two).abs().max()) for one, two in zip(*found, strict=True)
    )
    assert same == same_too == 0.0
    assert other_text > TOLERANCE  # negative control: that window reads all of it


@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/native"])
def test_a_window_as_long_as_the_text_reads_all(family: str) -> None:
    session, text, tree = model_of(family).start(), some_tokens(100, seed=1), some_tree(8, seed=3)
    session.extend(text)
    whole = session.forward(tree).logits
    assert_close(through(session, tree, Layers(window=(0, 100))).logits, whole)
    assert (through(session, tree, Layers(window=(4, 16))).logits - whole).abs().max() > TOLERANCE
    again = replace(
        Layers(window=(4, 16)), without_mlp=frozenset({1}), without_attention=frozenset({1})
    )
    through(session, tree, again)
    assert_close(session.forward(tree).logits, whole)


def test_paths_read_the_same_places() -> None:
    tree, window = some_tree(8, seed=3), Layers(window=(40, 20))
    found = []
    for family in ("llama", "llama/lean", "llama/recorded", "llama/native"):
        session = model_of(family).start()
        session.extend(some_tokens(117, seed=1))
        found.append(through(session, tree, window).logits)
    for logits in found[1:]:
        assert_close(logits, found[0])


@pytest.mark.parametrize("family", ["mistral-window/native", "gemma3", "mistral-window/lean"])
def test_models_with_windows_of_their_own_take_none(family: str) -> None:
    with pytest.raises(ValueError, match="'window'"):
        through(model_of(family).start(), DraftTree.chain([1]), Layers(window=(4, 16)))


def test_a_window_has_no_negative_numbers() -> None:
    with pytest.raises(ValueError, match="no negative numbers"):
        through(model_of("llama").start(), DraftTree.chain([1]), Layers(window=(-1, 16)))
