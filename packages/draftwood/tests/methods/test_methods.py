"""The table of methods and the language model around it."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import draftwood
from draftwood import methods
from draftwood.loading.hub import load_pretrained
from draftwood.shapes import Paths, StochasticBeam, Widths
from draftwood.testing import tiny_llama
from draftwood.verifiers import Rejection, Traversal
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_torch.models.transformers import TransformersModel
from tiny_heads import tiny_drafter


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{n}": n for n in range(64)}
    inner = Tokenizer(WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0")


@pytest.fixture(scope="module")
def lm(tokenizer: PreTrainedTokenizerFast) -> draftwood.LanguageModel:
    return draftwood.load(tiny_llama(0, layers=6), tokenizer, method="plain")


PROMPT = "w1 w2 w3 w1 w2"


OF_SOME_MODELS = {
    **dict.fromkeys(("mtp", "mtp-rsd"), "mtp"),
    **dict.fromkeys(("shadow", "auto-shadow"), "int4"),
    **dict.fromkeys(("masked-block", "masked-in-pass"), "adapted_rows"),
}
"""Abilities that this one lacks, by the methods that need them."""


@pytest.mark.parametrize("name", methods.known())
def test_every_method_builds_and_writes_the_models_own_text(
    name: str, lm: draftwood.LanguageModel
) -> None:
    recipe = methods.recipe(name)
    draft = TransformersModel(tiny_llama(1, layers=1)) if "draft-model" in recipe.needs else None
    if name in OF_SOME_MODELS:
        with pytest.raises(ValueError, match=f"'{OF_SOME_MODELS[name]}'"):
            lm.with_method(name, draft or tiny_drafter(name, lm.model))
        return
    drafted = lm.with_method(name, draft or tiny_drafter(name, lm.model))
    result = drafted.generate(PROMPT, max_new_tokens=24, exact=recipe.lossless)
    assert result.method == name
    assert drafted.method.lossless == recipe.lossless
    if recipe.lossless:
        assert result.token_ids == lm.generate(PROMPT, max_new_tokens=24).token_ids
    else:
        with pytest.raises(ValueError, match="exact=False"):
            drafted.generate(PROMPT)


def test_every_recipe_is_consistent() -> None:
    for name, recipe in methods.known().items():
        assert name == recipe.name
        assert recipe.summary
        assert recipe.source


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: methods.build("rsdc", t), "did you mean.*rsd-c"),
        (lambda t: methods.build("layerskip", t), r"did you mean layer-skip\?$"),
        (lambda t: methods.build("clasp", t), r"did you mean layer-search\?$"),
        (lambda t: methods.build("zzz", t), "'draftwood methods' lists those that there are"),
        (lambda t: methods.build("rsd-s", t), "draft-model"),
        (lambda t: methods.build("lookup", t, draft_model=t), "no draft model"),
        (lambda t: methods.build("lookup", t, shape=Widths()), "takes no shape"),
        (lambda t: methods.build("recycling", t, shape=Widths()), "Paths"),
        (
            lambda t: methods.build("layer-skip", TransformersModel(tiny_llama(0, layers=2))),
            "at least 4 layers",
        ),
    ],
)
def test_impossible_methods(build, message: str, lm: draftwood.LanguageModel) -> None:
    with pytest.raises(ValueError, match=message):
        build(lm.model)


def test_shapes_and_verifiers_can_be_exchanged(lm: draftwood.LanguageModel) -> None:
    small = Paths(((0,), (1,), (0, 0)))
    assert methods.build("recycling", lm.model, shape=small).drafter.shape == small
    draft = TransformersModel(tiny_llama(1, layers=1))
    method = methods.build("rsd-c", lm.model, draft, StochasticBeam(2, 2), Traversal())
    assert (method.drafter.shape, method.verifier) == (StochasticBeam(2, 2), Traversal())


def test_a_method_built_by_hand(
    lm: draftwood.LanguageModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    method = draftwood.Method(LayerSkip(frozenset({2, 3}), Widths((2, 1))), Rejection(), "mine")
    own = draftwood.load(lm.model.hf_model, tokenizer, method=method)
    assert own.generate(PROMPT, max_new_tokens=8).method == "mine"


def test_a_recipe_stands_for_its_name(
    lm: draftwood.LanguageModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    recipe = replace(methods.recipe("recycling"), name="mine")
    assert lm.with_method(recipe).generate(PROMPT, max_new_tokens=8).method == "mine"
    own = draftwood.load(lm.model.hf_model, tokenizer, method=recipe)
    assert own.generate(PROMPT, max_new_tokens=8).method == "mine"
    inputs, stats = torch.tensor([lm.encode(PROMPT)]), []
    texts = [
        lm.model.hf_model.generate(inputs, max_new_tokens=8, do_sample=False, **loop)
        for loop in (
            {},
            {"custom_generate": draftwood.custom_generate(recipe, report=stats.append)},
        )
    ]
    assert torch.equal(*texts)
    assert stats[0].drafted > 0


def test_load_takes_models_in_memory(tokenizer: PreTrainedTokenizerFast) -> None:
    loaded = draftwood.load(
        tiny_llama(0), tokenizer, method="rsd-s", draft_model=tiny_llama(1, layers=1)
    )
    assert loaded.generate(PROMPT, max_new_tokens=5).stats.tokens == 5
    with pytest.raises(ValueError, match="tokenizer"):
        draftwood.load(tiny_llama(0))
    with pytest.raises(ValueError, match="own family"):
        draftwood.load(
            tiny_llama(0), tokenizer, method="rsd-s", draft_model=tiny_llama(1, vocab=200)
        )
    with pytest.raises(ValueError, match="did you mean"):
        draftwood.load("a model that is never looked for", method="recyclin")
    with pytest.raises(ValueError, match="--draft-model"):
        draftwood.load("a model that is never looked for", method="rsd-s")
    with pytest.raises(TypeError, match=r"method must be .*, got 3"):
        draftwood.load("a model that is never looked for", method=3)  # type: ignore[arg-type]
    for wrong in (3, "gpt2"):
        with pytest.raises(TypeError, match=f"tokenizer must be one of .*, got {wrong!r}"):
            draftwood.load(tiny_llama(0), wrong)  # type: ignore[arg-type]


def test_streams_add_up_to_the_text(lm: draftwood.LanguageModel) -> None:
    drafted = lm.with_method("recycling")
    stream = drafted.stream(PROMPT, max_new_tokens=30, temperature=1.0, seed=4)
    pieces = list(stream)
    result = stream.result
    assert "".join(pieces) == result.text
    assert len(pieces) > 3
    assert (
        result.token_ids
        == drafted.generate(PROMPT, max_new_tokens=30, temperature=1.0, seed=4).token_ids
    )


def test_stop_strings_end_the_text_inside_a_block(lm: draftwood.LanguageModel) -> None:
    whole = lm.generate(PROMPT, max_new_tokens=30)
    words = whole.text.split()
    stop = f" {words[6]} {words[7]}"
    same_model = TransformersModel(lm.model.hf_model)
    for drafted in (lm, lm.with_method("speculative", same_model), lm.with_method("recycling")):
        result = drafted.generate(PROMPT, max_new_tokens=30, stop=stop)
        assert result.text == whole.text[: whole.text.find(stop)]
        assert result.finish_reason == "stop"
        assert result.token_ids == whole.token_ids[: len(result.token_ids)]
        assert result.stats.tokens == len(result.token_ids)


def test_json_has_the_promised_fields(lm: draftwood.LanguageModel) -> None:
    printed = json.loads(
        json.dumps(lm.with_method("lookup").generate(PROMPT, max_new_tokens=12).as_json())
    )
    assert set(printed) == {"text", "token_ids", "finish_reason", "model", "method", "stats"}
    assert set(printed["stats"]) == {
        *(
            "tokens",
            "target_runs",
            "block_efficiency",
            "drafted",
            "accepted",
            "accepted_by_depth",
            "seconds",
        ),
        "tokens_per_second",
    }
    assert set(printed["stats"]["seconds"]) == {"prefill", "draft", "target", "verify", "total"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"stop": ""}, "stop string"),
        ({"logit_bias": {999: 1.0}}, "logit_bias"),
    ],
)
def test_impossible_options(options: dict, message: str, lm: draftwood.LanguageModel) -> None:
    with pytest.raises(ValueError, match=message):
        lm.generate(PROMPT, **options)


def test_prompts(lm: draftwood.LanguageModel) -> None:
    assert lm.encode("w1 w2") == [1, 2]
    assert (
        lm.generate([1, 2, 3, 1, 2], max_new_tokens=6).token_ids
        == lm.generate(PROMPT, max_new_tokens=6).token_ids
    )
    with pytest.raises(ValueError, match="no chat template"):
        lm.generate([{"role": "user", "content": "w1"}])
    with pytest.raises(ValueError, match="a raw prompt is no chat, so it takes a text, not a list"):
        lm.generate([{"role": "user", "content": "w1"}], raw=True)
    with pytest.raises(ValueError, match="empty"):
        lm.generate("")


@pytest.mark.model
@pytest.mark.proof
def test_the_built_in_model_answers_as_transformers_does() -> None:
    built_in = draftwood.load("smollm2-135m", method="recycling", dtype="float32")
    prompt = built_in.encode("What are the months of the year?")
    hf_model = load_pretrained("smollm2-135m", dtype="float32").model
    own = hf_model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
    for name in ("plain", "lookup", "recycling", "layer-skip", "auto"):
        result = built_in.with_method(name).generate(prompt, max_new_tokens=40)
        assert result.token_ids == own[0, len(prompt) :].tolist()
    assert "January" in result.text
