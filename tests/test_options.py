"""Prompts in every form that Transformers gives, and options of another type refused in one
line."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerFast

import draftwood
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.testing import tiny_llama

WORDS = ["<unk>", "user", "one", "two", "three", "answer", *(f"w{number}" for number in range(58))]
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}answer"


@pytest.fixture(scope="module")
def lm() -> draftwood.LanguageModel:
    known = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=known, unk_token="<unk>", pad_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    return draftwood.load(tiny_llama(0), tokenizer, method="lookup")


def text_of(lm: draftwood.LanguageModel, prompt, **options) -> list[int]:
    """Token ids for one prompt; ``generate`` takes lists of prompts too."""
    with lm.stream(prompt, max_new_tokens=6, **options) as stream:
        list(stream)
    return stream.result.token_ids


def test_every_form_of_token_ids_is_the_same_prompt(lm: draftwood.LanguageModel) -> None:
    wanted = text_of(lm, [2, 3, 4])
    assert wanted != text_of(lm, [2, 3])
    encoded = lm.tokenizer("one two three", return_tensors="pt")
    padded = lm.tokenizer(
        ["one two three", "one two three one two"], padding=True, padding_side="left"
    )
    forms = [
        *((2, 3, 4), [[2, 3, 4]], range(2, 5), [np.int64(2), 3, 4]),
        *(
            torch.tensor([2, 3, 4]),
            torch.tensor([[2, 3, 4]]),
            torch.tensor([2, 3, 4], dtype=torch.int32),
        ),
        *(np.array([2, 3, 4]), np.array([[2, 3, 4]], dtype=np.uint16)),
        *(
            lm.tokenizer("one two three"),
            encoded,
            dict(encoded),
            lm.tokenizer("one two three", return_tensors="np"),
        ),
        {"input_ids": padded["input_ids"][:1], "attention_mask": padded["attention_mask"][:1]},
    ]
    assert isinstance(encoded, BatchEncoding)
    for form in forms:
        assert text_of(lm, form) == wanted, form


def test_a_chat_may_be_given_as_its_template_makes_it(lm: draftwood.LanguageModel) -> None:
    messages = [{"role": "user", "content": "one two"}]
    wanted = text_of(lm, messages)
    assert wanted == text_of(lm, "one two") != text_of(lm, "one two", raw=True)
    for options in ({}, {"return_tensors": "pt"}, {"return_dict": True}, {"return_dict": False}):
        given = lm.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, **options
        )
        assert text_of(lm, given) == wanted


def test_parts_of_text_are_one_content(lm: draftwood.LanguageModel) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert text_of(lm, [{"role": "user", "content": parts}]) == text_of(lm, "one two")
    assert parts == [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (b"one two", r"bytes, not text; decode it first"),
        (None, "a prompt is a text.*NoneType"),
        (5, "a prompt is a text.*int"),
        (torch.tensor([1.0, 2.0]), "each token of the prompt must be a whole number.*1.0"),
        ([1, 2.5], "each token of the prompt must be a whole number.*2.5"),
        ([True, 2], "each token of the prompt"),
        (["one", "two"], "each token of the prompt"),
        ([1, {"role": "user", "content": "one"}], "each token of the prompt"),
        ({"role": "user", "content": "one"}, r"put a single message in a list"),
        ({"tokens": [1]}, "must have input_ids"),
        ([{"content": "one"}], "message 0 must be a dict with role and content"),
        ([{"role": "assistant", "tool_calls": [5]}], "tool_calls of message 0 must be a list of"),
        ([{"role": "assistant", "tool_calls": 5}], "tool_calls of message 0 must be a list of"),
        ([{"role": "user", "content": "one"}, "two"], "message 1 must be a dict"),
        ([{"role": "user", "content": 5}], "the content of message 0 must be text, got 5"),
        ([{"role": "user"}], "message 0 has no content; give it a text"),
        ([{"role": "user", "content": None}], "message 0 has no content; give it a text"),
    ],
    ids=repr,
)
def test_prompts_of_another_type_are_refused(
    lm: draftwood.LanguageModel, prompt: object, message: str
) -> None:
    with pytest.raises(TypeError, match=message) as refusal:
        text_of(lm, prompt)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([[1, 2], [3, 4]], "holds 2 texts"),
        (torch.zeros(2, 3, dtype=torch.long), "holds 2 texts"),
        ([], "no tokens"),
        ("", "prompt is empty"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}],
            "part of type 'image_url'",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
            "part of type 'image'",
        ),
        ("half \ud83d of it", r"the prompt holds a lone surrogate, U\+D83D at character 5"),
        (
            [{"role": "user", "content": "\udcff"}],
            r"the content of message 0 holds a lone surrogate, U\+DCFF",
        ),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 1]}, "attention_mask must say"),
    ],
    ids=repr,
)
def test_prompts_that_cannot_be_read_are_refused(
    lm: draftwood.LanguageModel, prompt, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        text_of(lm, prompt)


def test_no_stop_strings_may_be_none(lm: draftwood.LanguageModel) -> None:
    assert text_of(lm, "one", stop=None) == text_of(lm, "one", stop=[]) == text_of(lm, "one")
    first = lm.generate("one", max_new_tokens=6).text.split()[0]
    assert lm.generate("one", max_new_tokens=6, stop=first).text.strip() == ""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("stop", value) for value in (5, ["a", 5], b"a", {"a": 1})),
        *(("max_new_tokens", value) for value in (2.5, "5", None, True)),
        *(("seed", value) for value in (1.5, "5", True)),
        *((flag, value) for flag in ("raw", "exact", "ignore_eos") for value in ("yes", 1, None)),
        *(("temperature", value) for value in ("0.5", None)),
        *(("top_k", value) for value in (2.5, "5", None)),
        *(("logit_bias", value) for value in ([1], {"5": 1.0}, {5: None})),
    ],
)
def test_options_of_another_type_are_refused_by_name(
    lm: draftwood.LanguageModel, option: str, value: object
) -> None:
    with pytest.raises(TypeError, match=option) as refusal:
        lm.generate("one", **{option: value})
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers(lm: draftwood.LanguageModel) -> None:
    wanted = text_of(lm, "one", temperature=0.5, top_k=3, seed=4)
    assert (
        text_of(lm, "one", temperature=np.float64(0.5), top_k=np.int32(3), seed=np.int64(4))
        == wanted
    )
    assert Sampling(np.float32(0.5)).temperature == 0.5


@pytest.mark.usefixtures("unchecked")
def test_seeds_below_zero_are_seeds_of_their_own() -> None:
    firsts = [Rng(seed).uniform() for seed in range(-50, 51)]
    assert len(set(firsts)) == 101
    assert Rng(-5).uniform() == Rng(-5).uniform() == Rng(np.int64(-5)).uniform()
    assert Rng(5).uniform() == 0.7417869892607294  # as ever
    assert Rng(0).uniform() == 0.7579544029403025


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"grammar": 5}, "grammar must be Lark or a compiled grammar, got 5"),
        ({"prefixes": 5}, "prefixes must be a Prefixes or None, got 5"),
        ({"salt": 5}, "salt must be a text, got 5"),
        ({"salt": None}, "salt must be a text, got None"),
    ],
    ids=repr,
)
def test_what_a_text_goes_by_is_refused_by_name(
    lm: draftwood.LanguageModel, option: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        text_of(lm, "one two", **option)
    with pytest.raises(TypeError, match=message):
        lm.generate(["one", "two"], max_new_tokens=2, **option)


@pytest.mark.usefixtures("unchecked")
def test_parts_of_another_type_are_refused_by_name(lm: draftwood.LanguageModel) -> None:
    model = tiny_llama(0)
    for name in ("drafter", "datastore", "draft_model"):  # the first is an old name of the last
        method = "speculative" if name == "draft_model" else "auto"
        with pytest.raises(TypeError, match=f"^{name} must be .*, got 5$"):
            draftwood.load(model, lm.tokenizer, method=method, **{name: 5})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"^{name} must be .*, got 5$"):
            lm.with_method(method, **{name: 5})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^drafter must be .*, got 5$"):
        draftwood.custom_generate("auto", drafter=5)  # type: ignore[arg-type]


def test_a_call_of_a_tool_needs_no_content(lm: draftwood.LanguageModel) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "two"}}]}
    assert text_of(lm, [{"role": "user", "content": "one"}, call])
