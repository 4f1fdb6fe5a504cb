"""Lists of prompts, several answers, and log-probabilities."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import draftwood
from draftwood import engine, methods
from draftwood.drafters import Drafter, DraftModel, MultiSource, Nothing, PromptLookup
from draftwood.engine import Options, ParallelSampling
from draftwood.methods import Method
from draftwood.models.cached import CachedModel
from draftwood.models.native import NativeModel
from draftwood.shapes import StochasticBeam, Widths
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from letters import letters
from thinning import thinned

PROMPTS = ["abcabcab", "x", "the rain in spain" * 3]
PATHS = {"native": NativeModel, "lean": LeanModel, "general": TransformersModel}
HF_MODEL = tiny_llama(0, layers=3, context=512)


def methods_on(target: CachedModel) -> dict[str, Method]:
    draft = LeanModel(tiny_llama(1, layers=1, context=512))
    drafters: dict[str, tuple[Drafter, Any]] = {
        "plain": (Nothing(), Match()),
        "lookup": (PromptLookup(), Match()),
        "auto": (MultiSource(), Match()),
        "draft model": (DraftModel(draft, StochasticBeam(3, 2)), Rejection()),
        "layer-skip": (LayerSkip(frozenset({1}), Widths((2, 1))), Rejection()),
    }
    return {name: Method(drafter, rule, name) for name, (drafter, rule) in drafters.items()}


@pytest.fixture(params=PATHS, scope="module")
def lm(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    target = PATHS[request.param](HF_MODEL)
    yield LanguageModel(target, letters(), methods.build("plain", target), "tiny")
    assert not target.pool.used


@pytest.fixture(params=thinned(["plain", "lookup", "auto", "draft model", "layer-skip"], 2))
def by_method(request: pytest.FixtureRequest, lm: LanguageModel) -> LanguageModel:
    return lm.with_method(methods_on(lm.model)[request.param])  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", thinned([0.9, 0.0], 2))
def test_each_text_of_a_list_is_that_of_its_prompt_alone(
    by_method: LanguageModel, temperature: float
) -> None:
    options = {"max_new_tokens": 12, "temperature": temperature, "seed": 3, "stop": "q"}
    together = by_method.generate(PROMPTS * 4, **options)
    alone = [by_method.generate(prompt, **options) for prompt in PROMPTS] * 4
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [(each.text, each.finish_reason) for each in together] == [
        (each.text, each.finish_reason) for each in alone
    ]


@pytest.mark.parametrize(
    ("prompt", "temperature"),
    [("abcabcab", 0.0), ("a long one, in more than one chunk " * 12, 0.9)],
    ids=["short, greedy", "long, drawn"],
)
def test_answer_i_is_the_text_of_the_seed_plus_i(
    by_method: LanguageModel, temperature: float, prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwood.engine.prefill.CHUNK", 100)
    options = {"max_new_tokens": 9, "temperature": temperature, "logprobs": 2}
    result = by_method.generate(prompt, n=4, seed=11, **options)
    alone = [by_method.generate(prompt, seed=11 + number, **options) for number in range(4)]
    assert [each.token_ids for each in result.answers] == [each.token_ids for each in alone]
    assert result.answers[0].text == result.text
    assert len(result.answers) == 4
    assert not result.answers[1].others
    for one, other in zip(result.answers, alone, strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        pairs = zip(one.logprobs, other.logprobs, strict=True)
        assert all(here.logprob == pytest.approx(there.logprob, abs=1e-4) for here, there in pairs)
    assert len({tuple(each.token_ids) for each in result.answers}) == (4 if temperature else 1)


def _rows(part: Any) -> int:
    """Tokens of a part of a pass; a step that the library makes has its root at least."""
    return len(part.tokens) if hasattr(part, "tokens") else 1


def test_the_prompt_is_run_once_for_all_answers(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    run = type(lm.model).run

    def counting(self: Any, parts: Sequence[Any], *more: Any, **named: Any) -> Any:
        rows.append(sum(_rows(part) for part in parts))
        return run(self, parts, *more, **named)

    monkeypatch.setattr(type(lm.model), "run", counting)
    result = lm.generate(PROMPTS[2], n=5, max_new_tokens=4, temperature=1.0, seed=0)
    first, *others = rows
    assert first == len(PROMPTS[2])
    assert set(others) == {5}  # of which the library makes several in a row
    assert {each.stats.target_runs for each in result.answers} == {3}
    rows.clear()
    for number in range(5):
        lm.generate(PROMPTS[2], seed=number, max_new_tokens=4, temperature=1.0)
    assert [count for count in rows if count > 1] == [len(PROMPTS[2])] * 5
    assert len(result.answers) == 5


@pytest.mark.parametrize("ends", [False, True])
def test_a_draft_model_too_runs_the_prompt_once(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The answers are those of a draft model that runs it once for each, also where the first one
    ends at once.
    """
    method = methods_on(lm.model)["draft model"]  # type: ignore[arg-type]
    draft, rows = method.drafter.model, []  # type: ignore[attr-defined]
    run, abilities = draft.run, draft.abilities

    def counting(parts: Sequence[Any], *more: Any, **named: Any) -> Any:
        rows.extend(len(part.tokens) for part in parts)
        return run(parts, *more, **named)

    monkeypatch.setattr(draft, "run", counting)
    options = {"max_new_tokens": 6, "temperature": 1.0, "seed": 0}
    first = lm.generate(PROMPTS[2], n=4, **options).answers[0].text[0]
    if ends:
        options["stop"] = first
    found = {}
    for forks in (True, False):
        draft.abilities = abilities if forks else abilities - {"fork"}
        rows.clear()
        answers = lm.with_method(method).generate(PROMPTS[2], n=4, **options).answers
        going = sum(each.stats.target_runs > 1 for each in answers)
        assert going == (3 if ends else 4)
        found[forks] = [each.token_ids for each in answers]
        # the prompt with the root behind it
        assert sum(count > len(PROMPTS[2]) for count in rows) == (1 if forks else going)
    assert found[True] == found[False]
    assert not draft.pool.used


def test_answers_to_several_prompts(lm: LanguageModel) -> None:
    options = {"max_new_tokens": 6, "temperature": 1.0}
    found = lm.generate(PROMPTS, n=3, seed=5, **options)
    for prompt, result in zip(PROMPTS, found, strict=True):
        for number, answer in enumerate(result.answers):
            alone = lm.generate(prompt, seed=5 + number, **options)
            assert answer.token_ids == alone.token_ids
    assert found[0].as_json()["answers"][2]["token_ids"] == found[0].answers[2].token_ids  # type: ignore[index]


@pytest.mark.parametrize("count", [0, 3])
def test_log_probabilities_are_those_of_transformers(by_method: LanguageModel, count: int) -> None:
    for temperature, penalty in ((0.0, 1.0), (0.8, 1.3)):
        result = by_method.generate(
            PROMPTS[0],
            max_new_tokens=14,
            temperature=temperature,
            repetition_penalty=penalty,
            seed=2,
            logprobs=count,
        )
        prompt = by_method.encode(PROMPTS[0])
        text = torch.tensor([[*prompt, *result.token_ids]])
        with torch.no_grad():
            rows = HF_MODEL(text).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        assert result.logprobs is not None
        assert [each.token for each in result.logprobs] == result.token_ids
        for told, row in zip(result.logprobs, rows, strict=True):
            assert told.logprob == pytest.approx(float(row[told.token]), abs=1e-4)
            best = row.topk(count)
            assert list(told.top) == best.indices.tolist()
            assert list(told.top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)


def test_log_probabilities_are_told_where_they_are_asked_for(lm: LanguageModel) -> None:
    assert lm.generate("a", max_new_tokens=2).logprobs is None
    assert "logprobs" not in lm.generate("a", max_new_tokens=2).as_json()
    told = lm.generate("a", max_new_tokens=2, logprobs=1).as_json()["logprobs"]
    assert [set(each) for each in told] == [{"token", "logprob", "top"}] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        ([], {}, ValueError, "list of prompts is empty"),
        ("a", {"n": 0}, ValueError, "n must be at least 1, got 0"),
        ("a", {"n": -2}, ValueError, "n must be at least 1, got -2"),
        ("a", {"n": 1.5}, TypeError, "n must be a whole number >= 1, got 1.5"),
        ("a", {"n": True}, TypeError, "n must be a whole number"),
        ("a", {"n": 2, "seed": "x"}, TypeError, "seed must be a whole number or None"),
        (["a", [1, 2]], {}, TypeError, "mixes lists of token ids and texts"),
        (["a", 3], {}, TypeError, "mixes a token id and texts"),
        (["a", {"role": "user", "content": "b"}], {}, TypeError, "mixes a message and texts"),
        ([[1], [{"role": "user", "content": "b"}]], {}, TypeError, "mixes lists of messages and"),
        (["a", ""], {}, ValueError, "prompt is empty"),
        ([[1, 2], []], {}, ValueError, "no tokens"),
        ("a", {"logprobs": -1}, ValueError, "logprobs must be a whole number >= 0 or None, got -1"),
        (torch.zeros(2, 3, dtype=torch.long), {}, ValueError, "give generate a list of prompts"),
    ],
    ids=str,
)
def test_what_is_no_batch_is_refused(
    lm: LanguageModel, prompt: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refusal:
        lm.generate(prompt, **options)
    assert "\n" not in str(refusal.value)


def test_every_kind_of_list(lm: LanguageModel) -> None:
    wanted = lm.generate("abc", max_new_tokens=5).token_ids
    tokens = lm.encode("abc")
    for prompts in (
        ["abc", "abc"],
        ("abc", "abc"),
        [tokens, tokens],
        [tuple(tokens)],
        [torch.tensor(tokens), np.array(tokens)],
        [lm.tokenizer("abc"), {"input_ids": tokens}],
    ):
        found = lm.generate(prompts, max_new_tokens=5)
        assert isinstance(found, list)
        assert [each.token_ids for each in found] == [wanted] * len(prompts)
    for prompt in (tokens, tuple(tokens), torch.tensor([tokens])):
        assert lm.generate(prompt, max_new_tokens=5).token_ids == wanted


def test_chats_make_a_batch() -> None:
    tokenizer = letters()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chat = draftwood.load(tiny_llama(), tokenizer, method="lookup")
    messages = [{"role": "user", "content": "ab"}]
    one = chat.generate(messages, max_new_tokens=4)
    both = chat.generate(
        [messages, [*messages, {"role": "user", "content": "c"}]], max_new_tokens=4
    )
    assert both[0].token_ids == one.token_ids
    assert both[1].token_ids == chat.generate("abc", max_new_tokens=4).token_ids


@pytest.mark.parametrize(
    "template",
    ["{% for x in %}", "{{ raise_exception('no') }}", "{{ range(10 ** 9) }}", "{{ 1 / 0 }}"],
)
def test_a_template_that_fails_leaves_raw_texts(template: str) -> None:
    tokenizer = letters()
    tokenizer.chat_template = template
    lm = draftwood.load(tiny_llama(), tokenizer)
    with pytest.raises(ValueError, match="chat template refuses these messages"):
        lm.generate([{"role": "user", "content": "ab"}])
    assert lm.generate("ab", raw=True, max_new_tokens=4).token_ids


def test_answers_need_one_prompt_and_one_target() -> None:
    target, other = LeanModel(tiny_llama()), LeanModel(tiny_llama())

    def sequence(model: LeanModel, prompt: list[int]) -> engine.Sequence:
        return engine.Sequence(model, Nothing(), Match(), prompt, Options())

    with pytest.raises(ValueError, match="at least one answer"):
        ParallelSampling([])
    for second in (sequence(target, [2]), sequence(other, [1])):
        with pytest.raises(ValueError, match="share a prompt and a target"):
            ParallelSampling([sequence(target, [1]), second])
