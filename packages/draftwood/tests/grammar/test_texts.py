"""Texts under grammars, through the whole library, with tiny models that write nonsense."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema_rs import validator_for
from schemas import random_lists, random_schema

import draftwood
from draftwood import methods
from draftwood.drafters import DraftModel, MultiSource, Nothing, PromptLookup, RacedJacobi
from draftwood.engine import Options, Sequence
from draftwood.engine.method import Method
from draftwood.grammar import Grammar, ToolChoice
from draftwood.models.native import NativeModel
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_methods.drafters.stand import Stand
from draftwood_serve.tool_calls import read_calls
from draftwood_serve.tool_requests import read_tools
from draftwood_torch.lean.model import LeanModel
from small_models import bytes_and_pairs, tokenizer_of

TOKENIZER = bytes_and_pairs()
WIDTH = len(TOKENIZER) + 7
PROMPTS = ["a", "some text", "{"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def lm() -> Iterator[LanguageModel]:
    target = NativeModel(tiny_llama(0, vocab=WIDTH, context=1024))
    yield LanguageModel(target, TOKENIZER, methods.build("plain", target), "tiny")
    assert not target.pool.used


def methods_of(lm: LanguageModel) -> dict[str, Method]:
    draft = LeanModel(tiny_llama(1, layers=1, vocab=WIDTH, context=1024))
    return {
        "plain": Method(Nothing(), Match()),
        "lookup": Method(PromptLookup(), Match()),
        "auto": Method(MultiSource(), Match()),
        "stand": Method(Stand(), Match()),
        "raced-jacobi": Method(RacedJacobi(4), Match()),
        "draft model": Method(DraftModel(draft, Widths((2, 1))), Rejection()),
        "layer-skip": Method(LayerSkip(frozenset({1}), Widths((2, 1))), Rejection()),
    }


def test_texts_are_valid(lm: LanguageModel) -> None:
    whole = 0
    for seed in range(60):
        schema = random_schema(seed)
        writing = lm.with_method(list(methods_of(lm).values())[seed % 6])
        made = writing.generate(
            "x", json_schema=schema, temperature=1.0, seed=seed, max_new_tokens=300
        )
        if made.finish_reason == "stop":
            assert validator_for(schema).is_valid(json.loads(made.text)), made.text
            whole += 1
    assert whole > 40


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_methods_that_verify_by_match_write_the_plain_text(
    lm: LanguageModel, temperature: float
) -> None:
    def texts(method: Method) -> list[list[int]]:
        return [
            lm.with_method(method)
            .generate(
                prompt,
                json_schema=random_schema(seed),
                temperature=temperature,
                seed=seed,
                max_new_tokens=120,
            )
            .token_ids
            for seed in range(12)
            for prompt in PROMPTS[:2]
        ]

    known = methods_of(lm)
    wanted = texts(known["plain"])
    for name in ("lookup", "auto", "stand"):
        assert texts(known[name]) == wanted, name


@pytest.mark.parametrize("method", ["eagle-2-tree", "sequoia", "traversal", "rsd-s"])
def test_trees_of_draft_models_keep_to_the_grammar(lm: LanguageModel, method: str) -> None:
    """On many of these texts two branches come to the same place of a list by different ways."""
    draft = NativeModel(tiny_llama(1, layers=1, vocab=WIDTH, context=1024))
    writing = lm.with_method(methods.build(method, lm.model, draft_model=draft))
    whole = 0
    for seed in range(60):
        schema = random_lists(seed)
        options: dict[str, Any] = {"json_schema": schema, "temperature": 1.0, "seed": seed}
        made = writing.generate("x", max_new_tokens=80, **options)
        if method == "eagle-2-tree":  # verified by match
            assert made.token_ids == lm.generate("x", max_new_tokens=80, **options).token_ids
        if made.finish_reason == "stop":
            assert validator_for(schema).is_valid(json.loads(made.text)), made.text
            whole += 1
    assert whole > 30


def test_greedy_texts_of_drawn_drafts_are_the_plain_ones(lm: LanguageModel) -> None:
    known = methods_of(lm)
    for name in ("draft model", "layer-skip"):
        for seed in range(8):
            options: dict[str, Any] = {"json_schema": random_schema(seed), "max_new_tokens": 80}
            plain = lm.with_method(known["plain"]).generate("x", **options)
            assert lm.with_method(known[name]).generate("x", **options).text == plain.text


def test_forced_tokens_are_free_drafts(lm: LanguageModel) -> None:
    text = "the one text that there is"
    made = lm.generate("x", grammar=f"start: {json.dumps(text)}")
    assert (made.text, made.finish_reason) == (text, "stop")
    # the first token comes from the prompt, the next ones in two steps
    assert made.stats.target_runs <= 3
    assert made.stats.accepted == made.stats.drafted > 20


def test_batches_answers_and_streams_give_the_same_texts(lm: LanguageModel) -> None:
    options: dict[str, Any] = {
        "json_schema": json.dumps(SCHEMA),
        "temperature": 1.0,
        "seed": 4,
        "max_new_tokens": 60,
    }
    auto = lm.with_method(methods_of(lm)["auto"])
    alone = [auto.generate(prompt, **options) for prompt in PROMPTS]
    assert [made.text for made in auto.generate(PROMPTS, **options)] == [m.text for m in alone]
    several = auto.generate(PROMPTS[0], n=3, **options).answers
    assert several[0].text == alone[0].text
    assert several[2].text == auto.generate(PROMPTS[0], **{**options, "seed": 6}).text
    with auto.stream(PROMPTS[0], **options) as stream:
        assert "".join(stream) == alone[0].text
    for made in [*alone, *several]:
        if made.finish_reason == "stop":
            assert set(json.loads(made.text)) == {"name", "age"}


def test_the_grammar_ends_the_text_whatever_else_would(lm: LanguageModel) -> None:
    options: dict[str, Any] = {"grammar": 'start: "a" | "b"', "max_new_tokens": 50}
    for more in ({}, {"ignore_eos": True}):
        made = lm.generate("x", **options, **more)
        assert (made.text in ("a", "b"), made.finish_reason) == (True, "stop")
        assert len(made.token_ids) == 2
    biased = lm.generate(
        "x",
        grammar=lm.grammars.regex("[ab]*"),
        logit_bias={TOKENIZER.eos_token_id: 1000.0},
        max_new_tokens=9,
    )
    assert biased.text == ""


def test_no_token_left_is_an_error(lm: LanguageModel) -> None:
    a, *_ = TOKENIZER("a")["input_ids"]
    with pytest.raises(ValueError, match="leaves no token to choose from"):
        lm.generate("x", grammar='start: "a"', logit_bias={a: float("-inf")})
    small = tokenizer_of(list("abx"))
    tiny = draftwood.load(tiny_llama(0, vocab=4), small, method=Method(MultiSource(), Match()))
    with pytest.raises(ValueError, match=r"token 2 .* leaves no token"):
        tiny.generate("x", grammar='start: "a" "c"')
    assert tiny.generate("x", grammar='start: "ac" | "bb"', logit_bias={0: -1e9}).text == "bb"


def test_a_schema_or_a_grammar_for_this_model(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match="not both"):
        lm.generate("x", json_schema=SCHEMA, grammar='start: "a"')
    other = Grammar(lm.grammars.regex("a").matcher, WIDTH - 3, frozenset({0}))
    with pytest.raises(ValueError, match="compile the grammar for this model"):
        Sequence(lm.model, Nothing(), Match(), [1], Options(Sampling(), constraint=other))


def test_calls_of_tools(lm: LanguageModel) -> None:
    tools, _ = read_tools([{"type": "function", "name": "find", "parameters": SCHEMA}])
    grammar = lm.grammars.tools(tools, ToolChoice("required", parallel=False))
    made = lm.generate("x", grammar=grammar, temperature=1.0, seed=1, max_new_tokens=200)
    _, (call,) = read_calls(made.text)
    assert call.name == "find"
    assert validator_for(SCHEMA).is_valid(json.loads(call.arguments))


@pytest.mark.model
@pytest.mark.proof
def test_a_real_model() -> None:
    lm = draftwood.load("smollm2-135m")
    plain = lm.with_method("plain")
    for temperature in (0.0, 0.8):
        for seed in range(4):
            schema = random_schema(seed)
            options: dict[str, Any] = {
                "json_schema": schema,
                "temperature": temperature,
                "seed": seed,
                "max_new_tokens": 120,
            }
            made = lm.generate("Describe a person as JSON.", **options)
            assert (
                made.token_ids == plain.generate("Describe a person as JSON.", **options).token_ids
            )
            if made.finish_reason == "stop":
                assert validator_for(schema).is_valid(json.loads(made.text))
