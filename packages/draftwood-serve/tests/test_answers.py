"""Texts of completions and chats: what they say, when they end, what is told beside them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders

import draftwood
from draftwood.text.language_model import LanguageModel
from draftwood_serve.jobs import Speculation
from draftwood_serve.loaded import MOST_TREES
from letters import LETTERS, letters
from local_server import RunningServer, running, save_tiny

PROMPT = "hello"


@pytest.fixture(scope="module")
def lm(tiny: str) -> LanguageModel:
    return draftwood.load(tiny, method="plain")


def test_a_completion_is_the_text_of_the_library(server: RunningServer, lm: LanguageModel) -> None:
    server.post("/v1/completions", prompt=PROMPT, max_tokens=1)  # from here on it is known
    for options in (
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3, "top_k": 9},
        {"temperature": 1.0, "seed": 5, "presence_penalty": 1.0, "repetition_penalty": 1.2},
        {"temperature": 1.0, "seed": -7, "logit_bias": {5: 3.0}, "min_p": 0.1, "top_p": 0.9},
        {"temperature": 0.0, "rules": {"momentum": 0.2}},
    ):
        wanted = lm.generate(PROMPT, raw=True, max_new_tokens=24, **options)
        sent: dict[str, Any] = dict(options)
        if "logit_bias" in sent:
            sent["logit_bias"] = {str(token): value for token, value in sent["logit_bias"].items()}
        found = server.post("/v1/completions", prompt=PROMPT, max_tokens=24, **sent)
        assert found["choices"][0]["text"] == wanted.text
        assert found["choices"][0]["finish_reason"] == "length"
        usage = {"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}
        assert found["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 4}}
        assert found["metrics"]["speculative_decoding"]["num_spec_steps"] <= 23


def test_what_changes_texts_is_answered_where_the_server_allows_it(tiny: str) -> None:
    with running(tiny, draft_model=tiny, inexact=True) as server:
        assert server.text(PROMPT, max_tokens=8, speculative={"method": "typical"})


def test_a_rule_that_does_not_go_with_a_request_blames_the_request(tmp_path: Path) -> None:
    form = {"temperature": 0, "structured_outputs": {"regex": "ab"}}
    with running(save_tiny(tmp_path / "ending", end="z"), inexact=True) as server:
        for more in ({}, form):  # the API's own temperature is 1
            asked = {"prompt": PROMPT, "max_tokens": 4, "rules": {"pause": 1.0}, **more}
            error = server.refused("/v1/completions", 400, **asked)
            assert "rule 'pause' chooses among the likeliest tokens" in error["message"]
            assert error["code"] == "invalid_value"


def test_a_chat_is_the_text_of_the_library(server: RunningServer, lm: LanguageModel) -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "who"}]
    wanted = lm.generate(messages, max_new_tokens=16, temperature=0.7, seed=2)
    sent = {"messages": messages, "temperature": 0.7, "seed": 2, "max_completion_tokens": 16}
    found = server.post("/v1/chat/completions", **sent)
    assert found["choices"][0]["message"]["content"] == wanted.text
    parts = [{"type": "text", "text": "who"}]
    sent["messages"] = [messages[0] | {"role": "developer"}, {"role": "user", "content": parts}]
    assert server.post("/v1/chat/completions", **sent)["choices"] == found["choices"]


def test_a_completion_goes_on_with_its_prompt_and_a_chat_begins(tmp_path: Path) -> None:
    """With a tokenizer that drops the space before a text's first word, as Llama 2's does."""
    made = letters()
    made.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("Ġ", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    target = save_tiny(tmp_path, tokenizer=made)
    spaces = {"logit_bias": {"0": 100}, "max_tokens": 2, "temperature": 0}
    told = {"method": "plain", "trace": "tree"}
    with running(target) as server:
        found = server.post("/v1/completions", prompt="ab", speculative=told, echo=True, **spaces)
        asked = [{"role": "user", "content": "ab"}]
        chat = server.post("/v1/chat/completions", messages=asked, **spaces)
        assert server.text("ab", stream=False, logprobs=1, **spaces) == "  "
    assert found["choices"][0]["text"] == "ab  "
    steps = found["metrics"]["speculative_decoding"]["per_step_trees"]
    assert "".join("".join(step["tokens"]) for step in steps) == "  "
    assert chat["choices"][0]["message"]["content"] == " "


def test_a_stream_says_what_the_whole_answer_says(server: RunningServer) -> None:
    sent: dict[str, Any] = {
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 30,
        "seed": 9,
        "n": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["q", "ab"],
    }
    # the second time all but the prompt's last token is known
    _, whole = (server.post("/v1/chat/completions", **sent) for _ in range(2))
    for extra in ({}, {"stream_options": {"include_usage": True}}):
        told = server.stream("/v1/chat/completions", **sent, **extra)
        usage = told[-1]
        assert usage["metrics"]["seed"] == 9
        if extra:
            assert usage["choices"] == []
            assert usage["usage"] == whole["usage"]
            assert all(chunk["usage"] is None for chunk in told[:-1])
            told.pop()
        assert all(len(chunk["choices"]) == 1 for chunk in told)
        for place, wanted in enumerate(whole["choices"]):
            own = [c["choices"][0] for c in told if c["choices"][0]["index"] == place]
            assert own[0]["delta"]["role"] == "assistant"
            text = "".join(each["delta"].get("content", "") for each in own)
            assert text == wanted["message"]["content"]
            logprobs = [entry for each in own for entry in each["logprobs"]["content"]]
            assert logprobs == wanted["logprobs"]["content"]
            assert [each["finish_reason"] for each in own][:-1] == [None] * (len(own) - 1)
            assert own[-1]["finish_reason"] == wanted["finish_reason"]


def test_usage_grows_in_every_chunk_where_it_is_wanted(server: RunningServer) -> None:
    told = server.stream(
        "/v1/completions",
        prompt=PROMPT,
        max_tokens=12,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in told]
    assert all(first <= second for first, second in pairwise(counts))
    assert counts[-1] == 12


@pytest.mark.parametrize("method", ["auto", "plain", "lookup"])
def test_stop_strings_end_texts_and_their_logprobs(server: RunningServer, method: str) -> None:
    sent = {"prompt": PROMPT, "seed": 4, "max_tokens": 40, "speculative": {"method": method}}
    whole = server.text(**sent)
    stop = whole[11:14]
    assert stop not in whole[:11]
    found = server.post("/v1/completions", stop=["nowhere", stop], logprobs=1, **sent)
    (choice,) = found["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert found["usage"]["completion_tokens"] == whole.index(stop) + 3
    told = server.stream("/v1/completions", stop=stop, logprobs=1, **sent)
    assert "".join(each["choices"][0]["text"] for each in told) == choice["text"]
    for each in told:
        assert "".join(each["choices"][0]["logprobs"]["tokens"]) == each["choices"][0]["text"]


def test_logprobs_are_the_same_with_and_without_speculation(server: RunningServer) -> None:
    sent = {"prompt": "ababababab", "max_tokens": 24, "temperature": 0, "logprobs": 3}
    drafted = server.post("/v1/completions", **sent)
    plain = server.post("/v1/completions", speculative=False, **sent)
    assert drafted["choices"] == plain["choices"]
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    for value, top in zip(
        plain["choices"][0]["logprobs"]["token_logprobs"],
        plain["choices"][0]["logprobs"]["top_logprobs"],
        strict=True,
    ):
        assert value == max(top.values())


def test_logprobs_tell_words_with_and_without_a_space_apart(tmp_path: Path) -> None:
    """With pieces of SentencePiece, which decoded alone lose the space before them."""
    alone = LETTERS[1:27]
    made = letters(["▁", *alone, *(f"▁{each}" for each in alone), *"012345678._"])
    made.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    with running(save_tiny(tmp_path, tokenizer=made)) as server:
        sent = {"prompt": PROMPT, "max_tokens": 40, "seed": 1, "logprobs": 20}
        (choice,) = server.post("/v1/completions", **sent)["choices"]
    told = choice["logprobs"]
    assert " " in choice["text"]
    assert "".join(told["tokens"]) == choice["text"]
    for token, value, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top[token] == value
        assert len(top) >= 20


def test_an_echo_tells_the_prompts_own_logprobs(server: RunningServer, lm: LanguageModel) -> None:
    prompt = "what is it " * 20  # more than one chunk of rows
    sent = {"prompt": prompt, "echo": True, "logprobs": 2, "temperature": 0}
    (choice,) = server.post("/v1/completions", max_tokens=3, **sent)["choices"]
    tokens = lm.encode(prompt, raw=True)
    session = lm.model.start()
    rows = session.extend(tokens, keep="all").logits.float().log_softmax(-1)
    session.close()
    wanted = [float(rows[place, token]) for place, token in enumerate(tokens[1:])]
    told = choice["logprobs"]
    assert told["token_logprobs"][0] is None
    assert told["token_logprobs"][1 : len(tokens)] == pytest.approx(wanted, abs=1e-5)
    assert len(told["tokens"]) == len(tokens) + 3
    assert choice["text"].startswith(prompt)
    assert choice["text"][len(prompt) :] == server.text(prompt, max_tokens=3, temperature=0)
    assert "".join(told["tokens"]) == choice["text"]
    for token, start in zip(told["tokens"], told["text_offset"], strict=True):
        assert choice["text"][start : start + len(token)] == token
    found = server.post("/v1/completions", max_tokens=0, **sent)
    (nothing,) = found["choices"]
    assert nothing["text"] == prompt
    assert nothing["logprobs"]["token_logprobs"] == told["token_logprobs"][: len(tokens)]
    assert found["usage"]["completion_tokens"] == 0
    streamed = server.stream("/v1/completions", max_tokens=3, **sent)
    assert "".join(each["choices"][0]["text"] for each in streamed) == choice["text"]


def test_prompts_may_be_token_ids_and_several(server: RunningServer, lm: LanguageModel) -> None:
    texts = ["one", "three", "twelve"]
    ids = [lm.encode(each, raw=True) for each in texts]
    wanted = [server.text(each, seed=1, max_tokens=9) for each in texts]
    for prompt in (texts, ids):
        found = server.post("/v1/completions", prompt=prompt, seed=1, max_tokens=9, n=2)
        assert [each["index"] for each in found["choices"]] == list(range(6))
        assert [each["text"] for each in found["choices"]][::2] == wanted
        assert found["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert found["usage"]["completion_tokens"] == 54
    assert server.text(ids[1], seed=1, max_tokens=9) == wanted[1]


def test_choices_are_the_texts_of_the_seeds_that_follow(server: RunningServer) -> None:
    found = server.post("/v1/completions", prompt=PROMPT, n=3, max_tokens=12)
    seed = found["metrics"]["seed"]
    texts = [each["text"] for each in found["choices"]]
    assert texts == [server.text(PROMPT, seed=seed + n, max_tokens=12) for n in range(3)]
    assert len(set(texts)) == 3
    assert server.post("/v1/completions", prompt=PROMPT)["metrics"]["seed"] != seed


def test_equal_prompts_without_a_seed_have_texts_of_their_own(server: RunningServer) -> None:
    found = server.post("/v1/completions", prompt=[PROMPT] * 3, n=2, max_tokens=12)
    seed = found["metrics"]["seed"]
    texts = [each["text"] for each in found["choices"]]
    assert texts == [server.text(PROMPT, seed=seed + place, max_tokens=12) for place in range(6)]
    assert len(set(texts)) == 6


def test_a_text_ends_where_the_context_is_full(server: RunningServer) -> None:
    found = server.post("/v1/completions", prompt="a" * 500, max_tokens=10**12)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] in (512, 513)


def test_a_trace_tells_each_step(server: RunningServer) -> None:
    sent = {"prompt": "abcabcabcabc", "max_tokens": 20, "temperature": 0}
    found = server.post("/v1/completions", speculative={"trace": True}, **sent)
    told = found["metrics"]["speculative_decoding"]
    assert sum(told["per_step_accepted"]) == told["num_accepted_draft_tokens"]
    assert sum(told["per_step_drafted"]) == told["num_draft_tokens"]
    assert len(told["per_step_drafted"]) == told["num_spec_steps"]
    histogram = enumerate(told["acceptance_histogram"])
    assert sum(n * count for n, count in histogram) == told["num_accepted_draft_tokens"]
    assert "per_step_accepted" not in server.post("/v1/completions", **sent)["metrics"]


def test_a_budget_bounds_the_draft_tokens_of_a_step(server: RunningServer) -> None:
    sent = {"prompt": "abcabcabcabc", "max_tokens": 20, "temperature": 0}
    texts = set()
    for budget in (0, 2, 64):
        found = server.post("/v1/completions", speculative={"budget": budget}, **sent)
        texts.add(found["choices"][0]["text"])
        assert found["metrics"]["speculative_decoding"]["num_spec_tokens"] <= budget
    assert len(texts) == 1


def test_a_request_chooses_its_tree(server: RunningServer) -> None:
    sent = {"prompt": "abcabcabcabc", "max_tokens": 20, "temperature": 0}
    texts = {server.post("/v1/completions", speculative=False, **sent)["choices"][0]["text"]}
    for tree, most in (("1", 1), ("2,1", 4), ("3", 3)):
        wanted = {"method": "recycling", "tree": tree, "trace": True}
        found = server.post("/v1/completions", speculative=wanted, **sent)
        texts.add(found["choices"][0]["text"])
        drafted = found["metrics"]["speculative_decoding"]["per_step_drafted"]
        assert 0 < max(drafted) <= most
    assert len(texts) == 1


def test_trees_of_requests_do_not_pile_up(server: RunningServer) -> None:
    target = server.target
    for length in range(1, MOST_TREES + 5):
        target.using("", Speculation("recycling", tree=str(length)))
    assert len(target._with_trees) == MOST_TREES
    kept = target.using("", Speculation("recycling", tree=str(MOST_TREES + 4)))
    assert target.using("", Speculation("recycling", tree=str(MOST_TREES + 4))) is kept
    assert not target.knows("", Speculation("recycling", tree="1"))


def test_what_was_drafted_is_counted(server: RunningServer) -> None:
    name = "spec_decode_num_draft_tokens_total"
    before = server.metric(name)
    found = server.post("/v1/completions", prompt="abcabcabcabc", max_tokens=20, temperature=0)
    drafted = found["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert server.metric(name) == before + drafted


@pytest.mark.parametrize("n", [1, 3])
def test_metrics_count_each_of_several_steps_in_a_row(server: RunningServer, n: int) -> None:
    names = ("steps_total", "step_seconds_count")
    before = [server.metric(name) for name in names]
    sent = {"prompt": PROMPT, "max_tokens": 200, "n": n, "speculative": False}
    server.post("/v1/completions", **sent)
    told = [server.metric(name) - then for name, then in zip(names, before, strict=True)]
    assert 199 <= min(told) <= max(told) <= 202
