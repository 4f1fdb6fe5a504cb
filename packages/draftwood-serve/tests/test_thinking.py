"""Models that think before they answer: their thoughts are told apart, and may be turned off."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from draftwood_serve.mapping import messages_of, of_chat, of_responses
from draftwood_serve.ollama import of_chat as of_ollama_chat
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.ollama import OllamaChatBody
from draftwood_serve.schemas.responses import ResponsesBody
from letters import LETTERS, letters
from local_server import NAME, TEMPLATE, RunningServer, running, save_tiny

THINKS = TEMPLATE + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
TOKENS = [*LETTERS[:27], "_", *'Ċ<>/{}":,.Z']
GO: Any = [{"role": "user", "content": "go"}]
OFF = {"enable_thinking": False}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model never ends its thought."""
    made = letters([*TOKENS, *(f"{each}{each}" for each in LETTERS[1:26])])
    folder = tmp_path_factory.mktemp("thinks") / "thinker"
    with running(save_tiny(folder, end="Z", tokenizer=made, template=THINKS)) as found:
        yield found


def asked(**more: Any) -> dict[str, Any]:
    return {"messages": GO, "temperature": 0, "max_tokens": 12, **more}


def test_a_chat_tells_its_thought_apart(thinker: RunningServer) -> None:
    whole = thinker.post("/v1/chat/completions", **asked())
    message = whole["choices"][0]["message"]
    assert message["content"] == ""
    assert message["reasoning_content"]
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}
    deltas = [
        each["choices"][0]["delta"]
        for each in thinker.stream("/v1/chat/completions", **asked())
        if each["choices"]
    ]
    told = "".join(each.get("reasoning_content", "") for each in deltas)
    assert told == message["reasoning_content"]
    assert not any(each.get("content") for each in deltas)


def test_thinking_may_be_turned_off(thinker: RunningServer) -> None:
    plain = thinker.post("/v1/chat/completions", **asked(chat_template_kwargs=OFF))
    message = plain["choices"][0]["message"]
    assert message["content"]
    assert "reasoning_content" not in message
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    for more in (
        {"reasoning_effort": "none"},
        {"reasoning_effort": "low", "chat_template_kwargs": OFF},
    ):
        found = thinker.post("/v1/chat/completions", **asked(**more))
        assert found["choices"][0]["message"] == message
    thinks = thinker.post("/v1/chat/completions", **asked(reasoning_effort="high"))
    assert "reasoning_content" in thinks["choices"][0]["message"]
    unknown = asked(chat_template_kwargs={"enable_thoughts": False})
    told = thinker.refused("/v1/chat/completions", 400, **unknown)["message"]
    assert "'enable_thoughts'; it asks for enable_thinking" in told
    error = thinker.refused("/v1/chat/completions", 400, **unknown)
    assert error["param"] == "chat_template_kwargs"
    told = thinker.refused("/v1/completions", 400, prompt="go", chat_template_kwargs=OFF)["param"]
    assert told == "chat_template_kwargs"


def test_a_format_leaves_no_place_for_a_thought(thinker: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    wanted = {"type": "json_object", "schema": schema}
    found = thinker.post("/v1/chat/completions", **asked(max_tokens=60, response_format=wanted))
    message = found["choices"][0]["message"]
    assert json.loads(message["content"]) == {"a": "b"}
    assert "reasoning_content" not in message
    again = thinker.post("/v1/chat/completions", **asked(max_tokens=60, response_format=wanted))
    usage = again["usage"]  # all but the newest token, of the closed thought too
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_response_tells_its_thought_in_an_item_of_its_own(thinker: RunningServer) -> None:
    with OpenAI(
        base_url=f"{thinker.address}/v1", api_key="none", _strict_response_validation=True
    ) as client:
        sent: dict[str, Any] = {"model": NAME, "input": "go", "temperature": 0}
        sent |= {"max_output_tokens": 12, "extra_body": {"seed": 1}}
        whole = client.responses.create(**sent)
        events = list(client.responses.create(**sent, stream=True))
    (item,) = whole.output
    assert item.type == "reasoning"
    (part,) = item.content or []
    assert part.type == "reasoning_text"
    assert whole.output_text == ""
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == 12
    deltas = [each.delta for each in events if each.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == part.text
    kinds = [each.type for each in events]
    assert [each for each in kinds if not each.endswith("delta")] == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.content_part.added", "response.reasoning_text.done"),
        *("response.content_part.done", "response.output_item.done", "response.incomplete"),
    ]


def test_ollamas_clients_hear_thoughts_and_turn_them_off(thinker: RunningServer) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": GO, "stream": False}
    asked["options"] = {"num_predict": 12, "temperature": 0}
    for think in ("none", "false", ""):
        assert "think" in thinker.client.post("/api/chat", json={**asked, "think": think}).text
    for more in ({}, {"think": True}, {"think": "low"}):
        message = thinker.post("/api/chat", **asked, **more)["message"]
        assert (message["content"], bool(message["thinking"])) == ("", True)
    message = thinker.post("/api/chat", **asked, think=False)["message"]
    assert message["content"]
    assert "thinking" not in message
    told = thinker.post("/api/generate", model=NAME, prompt="go", **{"stream": False})
    assert told["thinking"]
    raw = thinker.post("/api/generate", model=NAME, prompt="go", raw=True, stream=False)
    assert "thinking" not in raw
    body = {"model": NAME, "prompt": "go", "think": True, "raw": True}
    assert "leave think out" in thinker.client.post("/api/generate", json=body).text
    assert "thinking" in thinker.post("/api/show", model=NAME)["capabilities"]


def test_a_model_without_thoughts_says_so_where_one_is_wanted(server: RunningServer) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": GO, "stream": False}
    told = server.client.post("/api/chat", json={**asked, "think": True})
    assert told.status_code == 400
    assert "does not support thinking" in told.json()["error"]
    asked["options"] = {"num_predict": 2}
    assert server.post("/api/chat", **asked, think=False)["message"]["content"]
    body = {"messages": GO, "max_tokens": 2, "reasoning_effort": "high"}
    assert server.post("/v1/chat/completions", **body)["choices"][0]["message"]["content"]
    assert "thinking" not in server.post("/api/show", model=NAME)["capabilities"]


def test_thoughts_of_a_history_are_told_to_the_template() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    body = ChatBody.model_validate({"messages": [*GO, said]})
    assert of_chat(body).prompts == [[*GO, said]]
    part = {"type": "reasoning_text", "text": "b"}
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]},
        {"role": "assistant", "content": "a"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "c"},
    ]
    read = ResponsesBody.model_validate({"input": items, "reasoning": {"effort": "none"}})
    assert not isinstance(read.input, str)
    assert messages_of(read.input) == [*GO, said, {"role": "assistant", "content": "c"}]
    assert of_responses(read).thinks is False
    thoughts = [{"type": "reasoning", "content": [{"text": each}]} for each in "xyz"]
    call = {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"}
    mixed: Any = [*GO, *thoughts[:2], {"role": "assistant", "content": "a"}, thoughts[2], call]
    read = ResponsesBody.model_validate({"input": mixed, "reasoning": {"effort": ""}})
    assert not isinstance(read.input, str)
    (_, told) = messages_of(read.input)
    assert (told["content"], told["reasoning_content"]) == ("a", "x\n\ny\n\nz")
    assert len(told["tool_calls"]) == 1
    assert of_responses(read).thinks is None
    of_other = {"role": "assistant", "content": "a", "thinking": "b"}
    chat = OllamaChatBody.model_validate({"model": NAME, "messages": [*GO, of_other]})
    assert of_ollama_chat(chat).prompts == [[*GO, of_other]]


def test_thoughts_in_special_tokens_are_told_apart(tmp_path: Path) -> None:
    made = letters([*TOKENS, *(f"{each}{each}" for each in LETTERS[1:20])])
    made.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    opening, closing = made.convert_tokens_to_ids(["[THINK]", "[/THINK]"])
    template = TEMPLATE + "{# [THINK] #}"
    with running(save_tiny(tmp_path / "thinker", tokenizer=made, template=template)) as found:
        said = [
            found.post("/v1/chat/completions", **asked(logit_bias={str(token): 100}))
            for token in (opening, closing)
        ]
        bias = {str(opening): 100}
        streamed = [
            each["choices"][0]["delta"]
            for each in found.stream("/v1/chat/completions", **asked(logit_bias=bias))
            if each["choices"]
        ]
        raw = found.post("/v1/completions", prompt="go", max_tokens=3, logit_bias=bias)
    messages = [each["choices"][0]["message"] for each in said]
    assert messages[0]["reasoning_content"] == "[THINK]" * 11
    assert messages[0]["content"] == ""
    assert "".join(each.get("reasoning_content", "") for each in streamed) == "[THINK]" * 11
    assert said[0]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 11}
    assert messages[1]["content"] == "[/THINK]" * 12  # of an answer that thought nothing
    assert "reasoning_content" not in messages[1]
    assert raw["choices"][0]["text"] == ""
