"""Passes through some of a model's layers, or some halves of them; abilities that are missing are
refused by name.
"""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from draftwood.engine import Options, generate
from draftwood.models.model import ForwardInput, Layers, Model, ModelOutput, ModelSession
from draftwood.models.native import NativeModel, has_int8
from draftwood.models.requirements import require_ability, require_layers
from draftwood.shapes import Widths
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_torch.models.transformers import TransformersModel
from families import (
    LEAN_PATHS,
    SOME,
    TOLERANCE,
    assert_close,
    at_nodes,
    hf_model,
    leaf_paths,
    model_of,
    skipping,
    some_tokens,
    some_tree,
    through,
)

HALVES = {
    "one attention": Layers(without_attention=frozenset({1})),
    "one MLP": Layers(without_mlp=frozenset({2})),
    "first attention, last MLP": Layers(
        without_attention=frozenset({0}), without_mlp=frozenset({3})
    ),
    "all attention": Layers(without_attention=frozenset(range(4)), without_mlp=frozenset({1})),
    "all MLPs": Layers(without_mlp=frozenset(range(4))),
    "layers and halves": Layers(
        without_attention=frozenset({1, 2, 3}), without_mlp=frozenset({0, 2})
    ),
}


class Silent(nn.Module):
    """In the place of a part whose result is added to the stream: it adds nothing."""

    def __init__(self, gives_pair: bool) -> None:
        super().__init__()
        self.gives_pair = gives_pair

    def forward(self, hidden_states: Tensor, *args: object, **kwargs: object) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.gives_pair else nothing


@cache
def silenced(family: str, layers: Layers) -> PreTrainedModel:
    quiet: Any = copy.deepcopy(hf_model(family))
    for index in layers.without_attention:
        quiet.model.layers[index].self_attn = Silent(gives_pair=True)
    for index in layers.without_mlp:
        # GPT-OSS's network gives the experts' shares too
        pair = type(quiet).__name__ == "GptOssForCausalLM"
        layer = quiet.model.layers[index]
        for name in ("mlp", "block_sparse_moe", "shared_mlp"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, Silent(gives_pair=pair))
    return quiet


def expected(
    family: str, layers: Layers, before: list[int], path: list[int]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits and hidden states, the same for all paths that run a family."""
    return _expected(family.partition("/")[0], layers, tuple(before), tuple(path))


@cache
@torch.no_grad()
def _expected(
    family: str, layers: Layers, before: Sequence[int], path: Sequence[int]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits and hidden states along ``path`` through some layers, after a prefix that ran through
    all.
    """
    model, kept = hf_model(family), DynamicCache(config=hf_model(family).config)
    model(torch.tensor([before]), past_key_values=kept)
    out = silenced(family, layers)(
        torch.tensor([path]), past_key_values=kept, output_hidden_states=True
    )
    return out.logits[0], tuple(state[0] for state in out.hidden_states)


CASES = [  # all halves where the code is shared, of other families those that differ most
    (family, halves)
    for family in LEAN_PATHS
    if not family.startswith("gemma4")  # whose layers are scaled behind both
    for halves in HALVES
    if family.startswith("llama/") or halves in ("first attention, last MLP", "layers and halves")
]


@pytest.mark.parametrize(("family", "halves"), CASES)
def test_attention_and_mlp_are_left_out_apart(family: str, halves: str) -> None:
    layers, text, tree = HALVES[halves], some_tokens(12, seed=1), some_tree(10, seed=2)
    session = model_of(family).start()
    session.extend(text)
    given = through(session, tree, layers, hidden=(0, 1, 2, 3, 4))
    for path in leaf_paths(tree):
        tokens = [tree.token_list[node] for node in path]
        logits, states = expected(family, layers, text, tokens)
        assert_close(given.logits[path], logits)
        for layer, state in enumerate(states):
            assert_close(given.states(layer)[path], state)
    # and the next pass through all layers is as if this one had not been
    assert_close(session.forward(tree).logits, at_nodes(hf_model(family), text, tree))


@pytest.mark.parametrize("halves", HALVES)
def test_other_halves_would_be_noticed(halves: str) -> None:
    """Negative control: every choice of halves says something of its own."""
    text, path = some_tokens(12, seed=1), some_tokens(5, seed=2)
    own, _ = expected("llama", HALVES[halves], text, path)
    for name, layers in {**HALVES, "all": Layers()}.items():
        if name != halves:
            other, _ = expected("llama", layers, text, path)
            assert (own[-1] - other[-1]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["llama/lean", "llama/recorded", "llama/native"])
def test_a_tree_through_halves_is_run_piece_by_piece(family: str) -> None:
    session, tree, layers = model_of(family).start(), some_tree(12, 3), HALVES["layers and halves"]
    session.extend(some_tokens(9, seed=5))
    whole = through(session, tree, layers).logits
    pieces = [
        through(session, tree.keep(range(end)), layers, first).logits
        for first, end in ((0, 1), (1, 5), (5, 12))
    ]
    assert_close(torch.cat(pieces), whole)


@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8"])
def test_native_nodes_keep_their_bits_beside_other_layers(products: str) -> None:
    if products == "int8" and not has_int8(torch.device("cpu")):
        pytest.skip("this CPU has no fast 8-bit products")
    model = NativeModel(hf_model("llama"), products)  # type: ignore[arg-type]
    assert_together_as_alone(model, list(HALVES.values()), exact=True)


@pytest.mark.parametrize("family", ["llama", "gemma3", "llama/lean", "llama/recorded"])
def test_sequences_with_layers_of_their_own_share_a_pass(family: str) -> None:
    layers = [skipping(1), Layers(), skipping(0, 2), skipping(1), Layers()]
    assert_together_as_alone(model_of(family), layers, exact=False)


def assert_together_as_alone(model: Model, layers: list[Layers], exact: bool) -> None:
    given = []
    for number, own in enumerate(layers):
        session = model.start()
        session.extend(some_tokens(3 + 4 * number, seed=number))
        tree = some_tree(4 + number, seed=number)
        given.append(ForwardInput(session, tree, 0, (0, 2) if own == Layers() else (), own))
    alone = [model.forward([each])[0] for each in given]
    together = model.forward(given)
    for one, other in zip(together, alone, strict=True):
        assert one.hidden.keys() == other.hidden.keys()
        for here, there in [
            (one.logits, other.logits),
            *((one.states(layer), other.states(layer)) for layer in one.hidden),
        ]:
            assert torch.equal(here, there) if exact else here.shape == there.shape
            assert_close(here, there)
    for each in given:  # each knows what it ran
        if each.layers == Layers():
            each.session.commit([0])
        else:
            with pytest.raises(ValueError, match="cannot be kept"):
                each.session.commit([0])


def test_recorded_passes_are_apart_by_layers() -> None:
    model: Any = model_of("llama/recorded")
    session, tree = model.start(), some_tree(6, seed=1)
    session.extend(some_tokens(5, seed=0))
    for layers in [*HALVES.values(), Layers(), *HALVES.values()]:
        through(session, tree, layers)
    assert {bucket.layers for bucket in model.graphs.recorded} == {*HALVES.values(), Layers()}


def test_the_general_path_leaves_out_whole_layers_only() -> None:
    session = model_of("llama").start()
    session.forward(tree := DraftTree.chain([1, 2]))
    for layers in HALVES.values():
        with pytest.raises(ValueError, match="the general path leaves out whole layers only"):
            through(session, tree, layers)
    session.commit([0, 1])  # nothing was run


def test_the_general_path_has_no_hidden_states_of_passes_that_leave_out_layers() -> None:
    session, tree = model_of("llama").start(), DraftTree.chain([3, 4, 5])
    text = some_tokens(8, seed=1)
    session.extend(text)
    with pytest.raises(ValueError, match="no hidden states of passes that leave out layers"):
        through(session, tree, skipping(1), hidden=(0,))
    # nor does it spoil those of others
    given = session.forward(tree, hidden=(0, 1, 2, 3, 4)).hidden
    with torch.no_grad():
        own = hf_model("llama")(torch.tensor([[*text, 3, 4, 5]]), output_hidden_states=True)
    for layer in range(5):
        assert_close(given[layer], own.hidden_states[layer][0, -3:])


# Abilities

BEYOND = {
    "resume": [Layers(start=1), Layers(stop=2), Layers(1, 3)],
    "window": [Layers(window=(0, 64)), Layers(without_mlp=frozenset({1}), window=(4, 4))],
}


@pytest.mark.parametrize("ability", BEYOND)
def test_resuming_and_windows_are_refused_by_name(ability: str) -> None:
    for layers in BEYOND[ability]:
        with pytest.raises(ValueError, match=f"a forward pass .*'{ability}'.* TableModel does not"):
            require_layers(TableModel(torch.eye(4)), layers)


def test_abilities_are_what_the_models_can_do() -> None:
    for family in SOME:
        assert {"hidden", "partial", "resume", "fork"} <= model_of(family).abilities
    assert TableModel(torch.eye(4)).abilities == {"fork"}


def test_a_missing_ability_is_named_with_who_needs_it() -> None:
    table = TableModel(torch.eye(4))
    require_ability(table, "fork", "several answers to one prompt")
    for ability in ("hidden", "partial", "resume", "window", "embeddings_and_head"):
        with pytest.raises(ValueError, match=f"^my-drafter needs .*{ability!r}.* TableModel does"):
            require_ability(table, ability, "my-drafter")


def test_a_model_without_a_list_of_layers_leaves_none_out() -> None:
    flat = copy.deepcopy(hf_model("gpt2"))
    decoder: Any = flat.get_decoder()
    decoder.h = _Listless(decoder.h)
    model = TransformersModel(flat)
    assert "partial" not in model.abilities
    with pytest.raises(ValueError, match=r"'partial'.* TransformersModel does not"):
        through(model.start(), DraftTree.chain([1]), skipping(1))


class _Listless(nn.Module):
    """Layers under other names than those of a list."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.count = len(layers)
        for index, layer in enumerate(layers):
            self.add_module(f"layer_{index}", layer)

    def __getitem__(self, index: slice) -> list[nn.Module]:
        return [getattr(self, f"layer_{number}") for number in range(self.count)][index]

    def __iter__(self) -> Any:
        return iter(self[:])


def test_layer_skip_drafts_on_the_session_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = model_of("llama/native")
    seen: list[ForwardInput] = []
    forward = model.forward

    def watched(inputs: list[ForwardInput]) -> list[ModelOutput]:
        seen.extend(each for each in inputs if isinstance(each, ForwardInput))
        return forward(inputs)

    monkeypatch.setattr(model, "forward", watched)
    drafter = LayerSkip(frozenset({1, 2}), Widths((2, 1)))
    for _ in generate(model, drafter, Match(), [1, 2, 3], Options(max_new_tokens=8)):
        pass
    assert {each.layers for each in seen} == {Layers(), skipping(1, 2)}
    sessions: set[ModelSession] = {each.session for each in seen}
    assert len(sessions) == 1
