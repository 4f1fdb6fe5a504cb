"""Tests of layers that differ, and of inputs of their own, on the native path."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwood.models.configuration import ModelConfiguration, UnknownConfigurationError
from draftwood.models.decoder import Decoder, Layer
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.model import ForwardInput
from draftwood.models.native import NativeModel
from draftwood.models.native.prefixes import Prefixes
from draftwood.native import library
from draftwood.native.formats import CacheType, Products
from families import (
    UNLIKE,
    VOCAB,
    assert_close,
    hf_model,
    plainly,
    random_model,
    some_tokens,
)
from models.test_native_states import (
    assert_cuts_change_nothing,
    assert_says_as_its_own_code,
    assert_writes_as_plain,
    logits,
    native,
    some_draft,
)
from text.test_ends import NAMES
from thinning import thinned

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
LENGTH = 90  # of texts; windows and blocks are shorter
STORED: list[tuple[str, Products, CacheType | None]] = [
    ("gemma4", "bfloat16", None),
    ("gemma4", "int8", "int8"),
    ("gemma4-inputs", "float32", None),
    ("gemma4-inputs", "int8", "int8"),
    ("gemma4-experts", "int8", None),
]


@pytest.mark.parametrize("family", UNLIKE)
def test_logits_and_states_are_those_of_the_models_own_code(family: str) -> None:
    assert_says_as_its_own_code(family, LENGTH)


@pytest.mark.parametrize("family", ["gemma4", "gemma4-inputs"])
def test_the_first_layer_may_have_the_widest_heads(family: str) -> None:
    name, options = UNLIKE[family]
    kinds = [f"{kind}_attention" for kind in ("full", "sliding", "sliding", "full")]
    own = random_model(name, {**options, "layer_types": kinds})
    tokens = some_tokens(LENGTH)
    assert_close(NativeModel(own).start().extend(tokens).logits, plainly(own, tokens))


@pytest.mark.parametrize(("family", "products", "cache"), STORED)
@pytest.mark.parametrize("pieces", [(1,), (31, 2), (5, 64, 1, 33)])
def test_bits_do_not_depend_on_how_a_text_is_cut(
    family: str, products: Products, cache: CacheType | None, pieces: tuple[int, ...]
) -> None:
    assert_cuts_change_nothing(native(family, products, cache), some_tokens(LENGTH), pieces)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("family", "products", "cache"), STORED)
def test_trees_give_the_bits_of_texts_over_layers_that_differ(
    family: str, products: Products, cache: CacheType | None, seed: int
) -> None:
    model, tokens = native(family, products, cache), some_tokens(LENGTH)
    chance, whole, session = random.Random(seed), logits(model.start(), tokens), model.start()
    session.extend(tokens[:5])
    while session.length < LENGTH - 1:
        before = session.length
        draft = tokens[before : before + chance.randrange(1, 40)]
        tree, chain = some_draft(draft, chance)
        found = np.asarray(session.forward(tree).logits)
        assert np.array_equal(found[chain], whole[before : before + len(draft)])
        kept = sorted(chance.sample(chain, chance.randrange(1, len(chain) + 1)))
        session.commit(chain[: len(kept)])
        if chance.random() < 0.3:
            session.rewind(chance.randrange(min(session.length, 45)))


def test_several_texts_run_at_once_as_alone() -> None:
    model = native("gemma4-inputs", "int8")
    texts = [some_tokens(60, seed) for seed in range(3)]
    alone = [logits(model.start(), text) for text in texts]
    sessions = [model.start() for _ in texts]
    for session, text, already in zip(sessions, texts, (3, 31, 40), strict=True):
        session.extend(text[:already])
    for _ in range(15):
        trees = [
            some_draft(text[session.length : session.length + 4], random.Random(session.length))
            for session, text in zip(sessions, texts, strict=True)
        ]
        pairs = zip(sessions, trees, strict=True)
        outs = model.forward([ForwardInput(session, tree) for session, (tree, _) in pairs])
        for session, (_, chain), out, rows in zip(sessions, trees, outs, alone, strict=True):
            wanted = rows[session.length : session.length + len(chain)]
            assert np.array_equal(np.asarray(out.logits)[chain], wanted)
            session.commit(chain[:1])


@pytest.mark.parametrize("cache", [None, "int8"])
def test_forks_and_remembered_prompts_go_on(cache: CacheType | None) -> None:
    model, tokens = native("gemma4-inputs", "int8", cache), some_tokens(LENGTH)
    whole, session = logits(model.start(), tokens), model.start()
    session.extend(tokens)
    for length in (80, 64, 20):
        assert np.array_equal(logits(session.fork(length=length), tokens[length:]), whole[length:])
    prefixes = Prefixes(model)
    prefixes.remember(session, tokens)
    text = [*tokens[:70], (tokens[70] + 1) % VOCAB, *some_tokens(9)]
    began, length = prefixes.start(text)
    assert 0 < length <= 70
    assert np.array_equal(logits(began, text[length:]), logits(model.start(), text)[length:])


@pytest.mark.parametrize("numbers", ["float32", "bfloat16", "int8"])
def test_what_a_block_holds_is_read_layer_by_layer(numbers: str) -> None:
    """Keys and values go out of a cache and into another, in the shape of each layer."""
    model = NativeModel(
        hf_model("gemma4"),
        "float32",
        dtype="bfloat16" if numbers == "bfloat16" else "float32",
        cache="int8" if numbers == "int8" else None,
    )
    session, other, tokens = model.start(), model.start(), some_tokens(40)
    session.extend(tokens)
    other.extend(some_tokens(40, seed=5))
    stored = model.pool.places(session.slot, 0, 40)
    shapes = [keys.shape for keys, _ in stored[:4]]
    assert [shape[1] for shape in shapes] == [2, 1, 2, 1]
    assert [shape[2] for shape in shapes] == [16, 32, 16, 32]
    if numbers == "int8":
        assert [scales.shape for scales, _ in stored[4:]] == [(40, 2), (40, 1)] * 2
        return
    for layer, pair in enumerate(stored):
        model.pool.write(other.slot, layer, *(each.transpose(1, 0, 2) for each in pair), 40)
    found, wanted = (logits(each, [3]) for each in (other, session))
    assert np.array_equal(found, wanted)


def _values(layers: list[Layer]) -> None:
    layers[1] = replace(layers[1], value_norm=None)


def _scale(layers: list[Layer]) -> None:
    layers[0] = replace(layers[0], scale=1.0)


def _inputs(layers: list[Layer]) -> None:
    layers[3] = replace(layers[3], input=None)


def _beside(layers: list[Layer]) -> None:
    beside: Any = layers[1].beside
    turned = replace(beside, after_network_norm=beside.after_experts_norm)
    layers[1] = replace(layers[1], beside=turned)


def _router(layers: list[Layer]) -> None:
    experts: Any = layers[1].experts
    layers[1] = replace(layers[1], experts=replace(experts, factors=None))


def _routed(layers: list[Layer]) -> None:
    experts: Any = layers[1].experts
    layers[1] = replace(layers[1], experts=replace(experts, router_norm=None))


FAULTS: list[tuple[str, Callable[[list[Layer]], None]]] = [
    *(("gemma4", fault) for fault in (_values, _scale)),
    ("gemma4-inputs", _inputs),
    *(("gemma4-experts", fault) for fault in (_beside, _router, _routed)),
]


@pytest.mark.parametrize(("family", "fault"), FAULTS)
def test_each_part_of_such_layers_matters(
    family: str, fault: Callable[[list[Layer]], None]
) -> None:
    """The negative control of the comparison with the models' own code."""
    described, tokens = DescribedModel.of(hf_model(family)), some_tokens(LENGTH)
    layers = list(described.decoder.layers)
    fault(layers)
    assert _apart(described, replace(described.decoder, layers=tuple(layers)), tokens) > 1e-3


def test_the_inputs_of_other_tokens_would_be_noticed() -> None:
    described, tokens = DescribedModel.of(hf_model("gemma4-inputs")), some_tokens(LENGTH)
    inputs: Any = described.decoder.inputs
    turned = replace(inputs, embedding=inputs.embedding.flip(0).contiguous())
    assert _apart(described, replace(described.decoder, inputs=turned), tokens) > 1e-3


def _apart(described: DescribedModel, other: Decoder, tokens: list[int]) -> float:
    models = (NativeModel(described), NativeModel(replace(described, decoder=other)))
    found, wanted = (logits(model.start(), tokens) for model in models)
    return float(np.abs(found - wanted).max())


def told(**changed: Any) -> dict[str, Any]:
    """A configuration as a released folder has it."""
    options = UNLIKE["gemma4-inputs"][1]
    return {"model_type": "gemma4_text", **options, **changed}


def test_released_configurations_are_those_that_transformers_writes() -> None:
    own = hf_model("gemma4-inputs").config.to_dict()
    saved, released = ModelConfiguration(own), ModelConfiguration(told())
    assert saved.heads == released.heads == [(2, 16), (2, 32)] * 2
    assert saved.windows == released.windows


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4"),
        ({"num_kv_shared_layers": 3}, "no layer before them has"),
        ({"use_bidirectional_attention": "all"}, "sees what comes after"),
        ({"global_head_dim": 31}, "31 dimensions"),
        ({"per_layer_config": {"1": {"hidden_size": 8}}}, "differ in hidden_size"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "do not share 3 keys"),
        ({"vocab_size_per_layer_input": 7}, "embed 7 tokens"),
        ({"hidden_size_per_layer_input": -2}, "hidden_size_per_layer_input is -2"),
        ({"enable_moe_block": True, "num_experts": 4}, "goes to None of 4 experts"),
    ],
)
def test_configurations_of_another_shape_are_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(UnknownConfigurationError, match=says):
        ModelConfiguration(told(**changed))


@pytest.mark.parametrize("name", thinned(NAMES, 8, first=3))
def test_methods_write_what_plain_decoding_writes_over_such_layers(name: str) -> None:
    assert_writes_as_plain(name, native("gemma4-inputs", "int8"), 50)
