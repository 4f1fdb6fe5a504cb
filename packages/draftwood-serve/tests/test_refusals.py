"""Requests that are refused: one error in OpenAI's shape that names the field."""

from time import perf_counter
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from draftwood_serve.errors import ApiError
from draftwood_serve.jobs import blaming_the_request
from draftwood_serve.mapping import of_responses
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.completions import CompletionBody
from draftwood_serve.schemas.embeddings import EmbeddingBody, OllamaEmbedBody
from draftwood_serve.schemas.infill import InfillBody
from draftwood_serve.schemas.ollama import OllamaChatBody, OllamaGenerateBody
from draftwood_serve.schemas.responses import ResponsesBody
from local_server import RunningServer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "now"}}
BAD_TOOL = {
    "type": "function",
    "function": {
        "name": "a",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"b": {"type": "array", "uniqueItems": True}},
        },
    },
}
TEXT = {"prompt": "go", "max_tokens": 4}


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "warm"}, "temperature", "invalid_value"),
        ({"temperature": 1e-40}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"999": 1}}, "logit_bias", "invalid_value"),
        ({"rules": {"momentum": "much"}}, "rules", "invalid_value"),
        ({"rules": {"nosuch": 1}}, "rules", "invalid_value"),
        ({"rules": {"momentum": -1}}, "rules", "invalid_value"),
        ({"rules": {"pause": 1}}, "rules", "invalid_value"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"min_tokens": 5}, "min_tokens", "invalid_value"),
        ({"speculative": {"methods": "auto"}}, "speculative", "unknown_parameter"),
        ({"speculative": {"method": "nosuch"}}, "speculative", "invalid_value"),
        ({"speculative": {"method": "rsd-s"}}, "speculative", "invalid_value"),
        ({"speculative": {"method": "typical"}}, "speculative", "invalid_value"),
        ({"speculative": {"method": "lookup", "budget": 2}}, "speculative", "invalid_value"),
        ({"speculative": {"tree": "4x3"}}, "speculative", "invalid_value"),
        ({"speculative": {"tree": 4}}, "speculative", "invalid_value"),
        ({"speculative": {"method": "recycling", "tree": "0,1"}}, "speculative", "invalid_value"),
        ({"speculative": {"method": "recycling", "tree": "4x3"}}, "speculative", "invalid_value"),
        (
            {"speculative": {"method": "recycling", "tree": "999999,9"}},
            "speculative",
            "invalid_value",
        ),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)
def test_a_bad_field_is_named(
    server: RunningServer, more: dict[str, object], param: str, code: str
) -> None:
    status = 404 if "model" in more else 400
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        error = server.refused(path, status, **{**body, **more})
        assert (error["param"] or "").startswith(param)
        assert error["code"] == code
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 3}, "logprobs: true"),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "functions": []}, "functions is not supported"),
        ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 5}, "differ"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "content": "4"}]},
            "template refuses",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "does not support images",
        ),
        ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "later"}, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "tools": [TOOL, TOOL]}, "different names"),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "schema is missing",
        ),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "xml"}}, "response_format"),
        ("/v1/completions", {"prompt": ""}, "empty"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "empty"),
        ("/v1/completions", {"prompt": [["a"]]}, "prompt"),
        ("/v1/completions", {"prompt": [99]}, "token ids outside"),
        ("/v1/completions", {"prompt": "a\ud800b"}, "surrogate"),
        ("/v1/completions", {**TEXT, "max_tokens": 0}, "echo"),
        ("/v1/completions", {**TEXT, "best_of": 4}, "best_of"),
        ("/v1/completions", {**TEXT, "suffix": "x"}, "suffix"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/responses", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "x", "background": True}, "background"),
        ("/v1/chat/completions", {**CHAT, "modalities": ["text", "audio"]}, "modalities"),
        ("/v1/responses", {"input": "x", "truncation": "middle"}, "truncation"),
    ],
)
def test_a_bad_request_is_explained(
    server: RunningServer, path: str, body: dict[str, object], what: str
) -> None:
    assert what in server.refused(path, 400, **body)["message"]


OF_A_CALL = {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": []}


@pytest.mark.parametrize(
    ("path", "body", "told", "param"),
    [
        (
            "/v1/responses",
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "item_reference is not supported, as this server stores nothing; send the item itself",
            "input.0",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": "a"}, {"type": "web_search_call", "id": "b"}]},
            "an item of type web_search_call is not supported by this server; leave it out or give"
            " one of type message, function_call, function_call_output or reasoning",
            "input.1",
        ),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image"}]}]},
            "this server does not support images",
            "input.0.output",
        ),
        (
            "/v1/responses",
            {"input": "x", "tool_choice": ALLOWED},
            "a tool_choice of type allowed_tools is not supported",
            "tool_choice",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [TOOL], "tool_choice": ALLOWED},
            "a tool_choice of type allowed_tools is not supported",
            "tool_choice",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [TOOL, {"type": "custom", "custom": {"name": "b"}}]},
            "a tool of type custom is not supported by this server; leave it out or give one of"
            " type function",
            "tools.1",
        ),
        (
            "/v1/chat/completions",
            {"messages": [*CHAT["messages"], OF_A_CALL]},
            "a call of type custom is not supported",
            "messages.1.tool_calls.0",
        ),
    ],
)
def test_types_that_are_not_supported_are_told_as_such(
    server: RunningServer, path: str, body: dict[str, object], told: str, param: str
) -> None:
    error = server.refused(path, 400, **body)
    assert error["message"].startswith(told)
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"modalities": ["text"], "echo": False, "best_of": 1}),
        ("/v1/chat/completions", {"reasoning_effort": "low", "verbosity": "high"}),
        ("/v1/completions", {"use_beam_search": False, "stop_token_ids": []}),
        ("/v1/responses", {"background": False, "truncation": "auto"}),
        ("/v1/responses", {"reasoning": {"effort": "low"}, "truncation": "disabled"}),
    ],
)
def test_what_asks_for_nothing_else_is_taken(
    server: RunningServer, path: str, more: dict[str, object]
) -> None:
    body: dict[str, object] = {"input": "go", "max_output_tokens": 4}
    if path != "/v1/responses":
        body = CHAT if "chat" in path else TEXT
    wanted, found = (server.post(path, **body, seed=1, **each) for each in ({}, more))
    field = "output" if "output" in wanted else "choices"
    for told in (wanted, found):
        for each in told[field]:
            each.pop("id", None)
    assert found[field] == wanted[field]


def test_a_prompt_that_can_never_fit_has_a_code_of_its_own(server: RunningServer) -> None:
    error = server.refused("/v1/completions", 400, prompt="a" * 512)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    error = server.refused("/v1/responses", 400, input="a" * 600)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    messages = [{"role": "user", "content": "a" * 600}]
    error = server.refused("/v1/chat/completions", 400, messages=messages)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": 5}}},
            "response_format.json_schema.name",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "text": {
                    "format": {"type": "json_schema", "name": "a", "schema": {"type": "nosuch"}}
                },
            },
            "text.format",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [BAD_TOOL], "tool_choice": "required"},
            "tools",
        ),
        ("/v1/chat/completions", {**CHAT, "tools": [TOOL, TOOL], "tool_choice": "none"}, "tools"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}, "tool_choice"),
        (
            "/v1/chat/completions",
            {
                **CHAT,
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "later"}},
            },
            "tool_choice",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [TOOL], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "tools": [{"type": "function", "name": "now"}],
                "text": {"format": {"type": "json_object"}},
            },
            "text.format",
        ),
        ("/v1/responses", {"input": "x", "tool_choice": "required"}, "tool_choice"),
        ("/v1/completions", {"prompt": [1, 99]}, "prompt"),
        ("/v1/completions", {"prompt": [[1], [99]]}, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt.1"),
        ("/v1/completions", {"prompt": [[1], [-1]]}, "prompt.1.0"),
        ("/v1/chat/completions", {**CHAT, "stop": ["a", 5]}, "stop.1"),
        ("/v1/responses", {"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ("/v1/responses", {"input": [{"type": "function_call", "name": "a"}]}, "input.0.call_id"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input.0.content.0.text",
        ),
        ("/v1/responses", {"input": "x", "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ("/v1/responses", {"input": "x", "metadata": {"a": 1}}, "metadata.a"),
        ("/v1/responses", {"input": "x", "include": "all"}, "include"),
    ],
)
def test_a_field_within_a_field_is_named(
    server: RunningServer, path: str, more: dict[str, object], param: str
) -> None:
    assert server.refused(path, 400, **more)["param"] == param


MANY = 100_000
"""Wrong items of a body, of which pydantic would tell each."""
SAID = [{"role": "user", "content": "go"}]


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (ResponsesBody, {"input": [{}] * MANY}),
        (ResponsesBody, {"input": [{"role": "user", "content": [{}] * MANY}]}),
        (ResponsesBody, {"input": [{"type": "function_call_output", "output": [{}] * MANY}]}),
        (ResponsesBody, {"input": "go", "tools": [1] * MANY}),
        (ResponsesBody, {"input": "go", "text": {"format": dict.fromkeys(map(str, range(MANY)))}}),
        (ChatBody, {"messages": [1] * MANY}),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": [1] * MANY}]}),
        (ChatBody, {"messages": SAID, "tools": [1] * MANY}),
        (ChatBody, {"messages": SAID, "stop": [1] * MANY}),
        (ChatBody, {"messages": SAID, "prediction": {"type": "content", "content": [1] * MANY}}),
        (ChatBody, {"messages": SAID, "logit_bias": dict.fromkeys(map(str, range(MANY)), "")}),
        (ChatBody, {"messages": SAID, "rules": dict.fromkeys(map(str, range(MANY)), "")}),
        (ChatBody, {"messages": SAID, **dict.fromkeys(map(str, range(MANY)), 1)}),
        (CompletionBody, {"prompt": [{}] * MANY}),
        (CompletionBody, {"prompt": [-1] * MANY}),
        (CompletionBody, {"prompt": [[""] * MANY] * 3}),
        (EmbeddingBody, {"input": [{}] * MANY}),
        (InfillBody, {"input_extra": [{}] * MANY}),
        (InfillBody, {"response_fields": [{}] * MANY}),
        (OllamaEmbedBody, {"model": "tiny", "input": [{}] * MANY}),
        (OllamaChatBody, {"model": "tiny", "messages": [{}] * MANY}),
        (
            OllamaChatBody,
            {"model": "tiny", "messages": [{"role": "user", "tool_calls": [1] * MANY}]},
        ),
        (OllamaChatBody, {"model": "tiny", "tools": [{}] * MANY}),
        (OllamaGenerateBody, {"model": "tiny", "context": [{}] * MANY}),
        (OllamaGenerateBody, {"model": "tiny", "options": {"stop": [{}] * MANY}}),
    ],
)
def test_the_first_wrong_item_ends_the_reading(
    body: type[BaseModel], given: dict[str, object]
) -> None:
    with pytest.raises(ValidationError) as found:
        body.model_validate(given)
    assert found.value.error_count() <= 20


def test_many_wrong_items_hold_nobody_up(server: RunningServer) -> None:
    since = perf_counter()
    error = server.refused("/v1/responses", 400, input=[{}] * MANY)
    assert (error["code"], error["param"]) == ("invalid_value", "input.0.role")
    assert perf_counter() - since < 10


@pytest.mark.parametrize("stream", [False, True])
def test_numbers_that_no_answer_can_repeat_are_refused(server: RunningServer, stream: bool) -> None:
    parameters = '{"type": "object", "x": 1e999}'
    for field, given in (
        ("tools", f'[{{"type": "function", "name": "f", "parameters": {parameters}}}]'),
        ("text", f'{{"format": {{"type": "text", "schema": {parameters}}}}}'),
    ):
        content = f'{{"input": "hi", "tool_choice": "none", "{field}": {given}'
        content += f', "stream": {str(stream).lower()}}}'
        headers = {"content-type": "application/json"}
        answer = server.client.post("/v1/responses", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == ("tools" if field == "tools" else "text.format")


def test_null_is_nothing(server: RunningServer) -> None:
    given = {"temperature": None, "stream_options": {"include_usage": None}, "n": None}
    assert server.post("/v1/chat/completions", **CHAT, **given)["choices"]


def test_what_is_nested_too_deeply_is_the_requests_fault() -> None:
    def make() -> None:
        raise RecursionError

    with pytest.raises(ApiError) as found:
        blaming_the_request(make, "messages")
    assert (found.value.status, found.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "\\ud800": 1}',
        b'{"prompt": "a", "model": "\\udfff"}',
    ],
)
def test_broken_bodies_are_no_bugs(server: RunningServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        response = server.client.post(path, content=body, headers=headers)
        assert 400 <= response.status_code < 500, response.text
        assert response.json()["error"]["message"]


def test_fields_that_a_server_without_a_store_need_not_know_are_taken(
    server: RunningServer,
) -> None:
    more = {"user": "me", "metadata": {"a": "b"}, "store": False, "suffix": None, "stop": None}
    assert server.text(**TEXT, seed=1, **more) == server.text(**TEXT, seed=1)


def test_unknown_paths_and_methods_have_the_same_shape(server: RunningServer) -> None:
    for response, status in (
        (server.client.get("/v2/models"), 404),
        (server.client.get("/v1/completions"), 405),
        (server.client.get("/v1/models/other"), 404),
    ):
        assert response.status_code == status
        assert response.json()["error"]["message"]
    told = server.client.get("/v1/completions").json()["error"]["message"]
    assert told == "there is no GET /v1/completions; send POST"
    assert server.client.get("/api/chat").json()["error"] == "there is no GET /api/chat; send POST"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/responses", b'{"input": [{"type": "\\ud800"}]}', "an item of type \\ud800"),
        (
            "/v1/responses",
            b'{"input": "x", "tool_choice": {"type": "\\ud800"}}',
            "a tool_choice of",
        ),
        ("/api/chat", b'{"model": "tiny", "options": {"\\ud800": 1}}', "invalid option \\ud800"),
    ],
)
def test_half_a_character_of_a_wrong_name_is_told_as_its_code(
    server: RunningServer, path: str, body: bytes, told: str
) -> None:
    response = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error if isinstance(error, str) else error["message"]).startswith(told)


@pytest.mark.parametrize(
    "body", [b'{"prompt": "\xff"}', b'{"seed": ' + b"9" * 5000 + b"}", b"{", b"", b"[]", b"null"]
)
def test_what_is_no_json_object_is_one_error(server: RunningServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    error = server.client.post("/v1/completions", content=body, headers=headers).json()["error"]
    assert error["message"] == "the body is no JSON object; send one"
    assert error["code"] == "invalid_value"


def test_what_can_be_got_has_a_head(server: RunningServer) -> None:
    for path in ("/", "/health", "/v1/models", "/metrics", "/api/version"):
        head, whole = server.client.head(path), server.client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert server.client.head("/v1/completions").status_code == 405


def test_models_and_health_are_told(server: RunningServer) -> None:
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["id"] == "tiny"
    assert card["max_model_len"] == 512
    assert server.client.get("/v1/models/tiny").json() == card
    assert server.client.get("/health").json() == {"status": "ok"}


PARTS = [("image_url", "images"), ("input_audio", "sounds"), ("file", "files")]


@pytest.mark.parametrize(("kind", "what"), PARTS)
def test_parts_that_are_no_text_are_refused_in_words(
    server: RunningServer, kind: str, what: str
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "data:"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    error = server.refused("/v1/chat/completions", 400, **body)
    assert error["message"].startswith(f"this server does not support {what}, ")
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages.0.content")


def test_a_refusal_among_the_parts_of_an_answer_is_text() -> None:
    parts = [{"type": "refusal", "refusal": "I may not."}]
    messages: Any = [*CHAT["messages"], {"role": "assistant", "content": parts}]
    chat = ChatBody.model_validate({"messages": messages}).messages[-1].as_message()
    assert chat["content"] == [{"type": "text", "text": "I may not."}]
    (told,) = of_responses(ResponsesBody.model_validate({"input": messages})).prompts
    assert told[-1] == {"role": "assistant", "content": "I may not."}


def test_images_of_responses_are_refused_in_words(server: RunningServer) -> None:
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
    error = server.refused("/v1/responses", 400, input=[item])
    assert "does not support images" in error["message"]
