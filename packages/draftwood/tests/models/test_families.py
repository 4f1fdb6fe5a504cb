"""Promises of the table of families: each of its entries matters, and rows stay exact in every
type.
"""

import copy
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from draftwood.engine import Options, generate
from draftwood.loading.models import model_for
from draftwood.methods import build
from draftwood.models import description, families
from draftwood.models.family import Family, Scales
from draftwood.models.native import NativeModel, has_int8
from draftwood.tree import DraftTree
from draftwood_torch.lean.mlp import Mixture
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models import reading
from families import (
    GROWN,
    LEAN,
    ROUTED,
    TOLERANCE,
    WITH_IMAGES,
    apart,
    assert_close,
    at_nodes,
    deepest_path,
    ending_of,
    hf_model,
    plainly,
    some_tokens,
    some_tree,
)

needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
ALL = [*LEAN, *ROUTED, *GROWN]
TYPES = ["float32", "bfloat16", pytest.param("int8", marks=needs_int8)]
# of an entry; the others are for people, tested elsewhere, or numbers
FIELDS = [
    field.name
    for field in fields(Family)
    if field.name
    not in (
        "title",
        "prefix",
        "tensors",
        "is_unlike",
        "activation",
        "why_not",
        "scales",
        "states",
        "epsilon",
        "inner_size",
        "modules",
    )
]
TEXT = some_tokens(20, seed=1)


def native(family: str, products: str) -> NativeModel:
    """In bfloat16 as a model that was saved in it, whose cache is in bfloat16 too."""
    model: Any = hf_model(family)
    if products == "bfloat16":
        model = copy.deepcopy(model).to(torch.bfloat16)
    return NativeModel(model, products)  # type: ignore[arg-type]


@pytest.mark.parametrize("products", TYPES)
@pytest.mark.parametrize("family", ALL)
def test_a_row_has_the_same_bits_alone_in_a_chain_and_in_a_tree(family: str, products: str) -> None:
    model, tree = native(family, products), some_tree(40, seed=3)
    path = deepest_path(tree)
    assert len(path) > 5  # outgrows a window
    session, layers = model.start(), (0, 2, 4)
    session.extend(TEXT)
    within = session.forward(tree, hidden=layers)
    chain = [tree.token_list[node] for node in path]
    together = session.forward(DraftTree.chain(chain), hidden=layers)
    alone = [session.extend([token], hidden=layers) for token in chain]
    assert torch.equal(within.logits[path], together.logits)
    assert torch.equal(torch.cat([each.logits for each in alone]), together.logits)
    for layer in layers:
        assert torch.equal(within.states(layer)[path], together.states(layer))
        assert torch.equal(
            torch.cat([each.states(layer) for each in alone]), together.states(layer)
        )


@pytest.mark.parametrize("products", TYPES)
@pytest.mark.parametrize("family", ALL)
def test_trees_write_what_one_token_at_a_time_writes(family: str, products: str) -> None:
    model = native(family, products)
    texts = []
    for method in ("plain", "recycling"):
        chosen = build(method, model)
        options = Options(max_new_tokens=24)
        steps = generate(model, chosen.drafter, chosen.verifier, TEXT[:8], options)
        texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("family", ALL)
def test_hidden_states_are_those_of_transformers(family: str) -> None:
    model: Any = hf_model(family)
    with torch.no_grad():
        own = model(torch.tensor([TEXT]), output_hidden_states=True, use_cache=False).hidden_states
    for path in (LeanModel, NativeModel):
        given = path(model).start().extend(TEXT, hidden=(0, 1, 2, 3, 4)).hidden
        for layer in range(5):
            assert_close(given[layer], own[layer][0])


def error(family: str, found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative error of logits.

    A row between two experts may go to another one through rounding, and is then far off. So where
    there are experts, half of the rows count.
    """
    off = (found.float() - exact).norm(dim=1) / exact.norm(dim=1)
    return float(off.median() if family in ROUTED else off.square().mean().sqrt())


@pytest.mark.parametrize("family", ALL)
def test_in_bfloat16_up_to_its_rounding(family: str) -> None:
    """About as near to the model in float32 as Transformers' own model in bfloat16 is."""
    exact = plainly(hf_model(family), TEXT)
    half: Any = copy.deepcopy(hf_model(family))
    half.to(torch.bfloat16)
    usual = error(family, plainly(half, TEXT), exact)
    for path in (LeanModel, NativeModel):
        found = error(family, path(half).start().extend(TEXT).logits, exact)
        assert 0 < found < min(1.5 * usual, 0.1)


@needs_int8
@pytest.mark.parametrize("family", ALL)
def test_in_int8_logits_stay_near_those_of_floats(family: str) -> None:
    exact = plainly(hf_model(family), TEXT)
    found = NativeModel(hf_model(family), "int8").start().extend(TEXT).logits
    assert 0 < error(family, found, exact) < 0.15


def said(entry: Family, field: str, config: Any) -> object:
    """Value of an entry's field for a model."""
    own = getattr(entry, field)
    if field == "rotary":
        return [own(config, layer) for layer in range(config.num_hidden_layers)]
    return own(config) if callable(own) else own


@pytest.mark.parametrize("path", [LeanModel, NativeModel])
@pytest.mark.parametrize("family", WITH_IMAGES)
def test_of_a_model_for_images_the_text_part_runs(family: str, path: type) -> None:
    hf: Any = hf_model(family)
    model, tree = path(hf), some_tree(14, seed=2)
    session = model.start()
    given = session.extend(TEXT, hidden=(0, 2, 4))
    assert_close(given.logits, plainly(hf, TEXT))
    assert_close(session.forward(tree).logits, at_nodes(hf, TEXT, tree))
    before, after, logits = ending_of(hf, TEXT)
    assert apart(model.embeddings_and_head.logits(before), logits) <= 1e-5
    assert (
        apart(model.embeddings_and_head.logits(given.states(4), normed=True), logits) <= TOLERANCE
    )
    assert_close(given.states(4), after)
    tokens = torch.tensor(TEXT)
    assert torch.equal(model.embeddings_and_head.embed(tokens), hf.get_input_embeddings()(tokens))
    assert isinstance(model_for(hf), NativeModel)


@pytest.mark.parametrize("path", [LeanModel, NativeModel])
def test_frequencies_are_those_of_short_texts_also_after_a_long_one(path: type) -> None:
    """Transformers puts LongRoPE's others in their place while a text is long."""
    hf: Any = copy.deepcopy(hf_model("phi3-long"))
    expected = plainly(hf, TEXT)
    plainly(hf, some_tokens(100, seed=2))
    model = path(hf)
    assert model.context_length == 64
    assert_close(model.start().extend(TEXT).logits, expected)
    assert not torch.equal(
        hf.model.rotary_emb.inv_freq, hf.model.rotary_emb.original_inv_freq
    )  # or this proves nothing


def differences(family: str) -> list[tuple[str, Family]]:
    """The entry of a family's class with one thing each as Llama has it."""
    config: Any = hf_model(family).config.get_text_config()
    entry = families.FAMILIES[type(hf_model(family)).__name__]
    llama, found = families.FAMILIES["LlamaForCausalLM"], []
    for field in FIELDS:
        if said(entry, field, config) != said(llama, field, config):
            found.append((field, replace(entry, **{field: getattr(llama, field)})))
    routing = entry.routing(config)
    if routing is not None:
        for other in (
            replace(routing, per_row=routing.per_row - 1),
            replace(routing, sums_to_one=not routing.sums_to_one),
            replace(routing, is_sigmoid=not routing.is_sigmoid),
            replace(routing, scale=routing.scale + 1),
        ):
            found.append((str(other), replace(entry, routing=lambda config, other=other: other)))
    scales = entry.scales(config)
    for field in fields(Scales):
        if getattr(scales, field.name) != field.default:
            other = replace(scales, **{field.name: field.default})
            found.append((field.name, replace(entry, scales=lambda config, other=other: other)))
    return found


@pytest.mark.parametrize("family", ALL)
def test_an_entry_that_lacked_anything_would_be_noticed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with any one thing as Llama has it, the model is another or none."""
    model = hf_model(family)
    exact, name = plainly(model, TEXT), type(model).__name__
    for what, entry in differences(family):
        monkeypatch.setitem(reading.FAMILIES, name, entry)
        for path in (LeanModel, NativeModel):
            try:
                found = path(model).start().extend(TEXT).logits
            except (AssertionError, AttributeError, ValueError):
                continue  # a module that is not there, or one too many
            assert (found - exact).abs().max() > 100 * TOLERANCE, what


def test_the_families_differ_in_everything_that_an_entry_can_say() -> None:
    """Else there would be a switch that no test has seen."""
    named = {what for family in ALL for what, _ in differences(family)}
    named = {what for what in named if not what.startswith("Routing")}
    assert named == {*FIELDS, *(field.name for field in fields(Scales))}


@pytest.mark.parametrize("path", [LeanModel, NativeModel])
def test_another_activation_would_be_noticed(path: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    for family, name in (("llama", "gelu_tanh"), ("gemma", "silu")):
        named = dict.fromkeys(description.ACTIVATIONS, name)
        monkeypatch.setattr(description, "ACTIVATIONS", named)
        found = path(hf_model(family)).start().extend(TEXT).logits
        assert (found - plainly(hf_model(family), TEXT)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ROUTED)
def test_rows_go_to_experts_of_their_own(family: str) -> None:
    """Else the tests above would not see rows of different experts beside each other."""
    read = reading.read_decoder(hf_model(family))
    rows = torch.randn(5, read.sizes.hidden, generator=torch.Generator().manual_seed(0))
    mixtures = [layer.experts for layer in read.layers if layer.experts is not None]
    assert mixtures
    for experts in mixtures:
        chosen = Mixture(experts, []).choose(rows)[1]
        assert len({tuple(sorted(row)) for row in chosen.tolist()}) > 1
        if family == "qwen3-experts":  # which also has a layer without
            assert len(chosen.unique()) < len(experts.networks)
            assert len(mixtures) < len(read.layers)


def test_bytes_read_for_a_row_are_those_of_its_own_experts() -> None:
    config: Any = hf_model("mixtral").config
    read, model = reading.read_decoder(hf_model("mixtral")), NativeModel(hf_model("mixtral"))
    assert config.num_experts_per_tok * 2 == config.num_local_experts
    dense = [
        each
        for layer in read.layers
        for each in (layer.query, layer.key, layer.value, layer.output)
    ]
    own = [
        each
        for layer in read.layers
        for expert in layer.experts.networks[:2]  # type: ignore[union-attr]
        for each in (expert.gate, expert.up, expert.down)
    ]
    padded = [
        -(-each.weight.shape[0] // 16) * 16 * -(-each.weight.shape[1] // 32) * 32
        for each in (*dense, *own, read.lm_head)
    ]
    assert model.weight_bytes == 4 * sum(padded)
